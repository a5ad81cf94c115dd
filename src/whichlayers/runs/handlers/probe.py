"""Handler of sentence-level probes: the frozen model runs once for all probes of a stack, which train together."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from whichlayers.engine.cost import MemoryCost, StackTiming, TrialWork
from whichlayers.engine.settings import EngineSettings
from whichlayers.probes.progress import ENCODER_STEPS, probe_steps
from whichlayers.runs.assets import Assets
from whichlayers.runs.events import Reporter
from whichlayers.runs.handlers.base import (
    TRAINING_COST,
    TrialHandler,
    WorkerContext,
    count_eval_tokens,
    count_weights,
    error_factor,
    mean_length,
)
from whichlayers.trial import Trial, get_probe

if TYPE_CHECKING:
    from whichlayers.data.tokenize import TokenizedTask


class ProbeHandler(TrialHandler):
    """Trains linear probes on the pooled hidden states of frozen models."""

    fixed_stack_size = 512  # probes are small; together they need only one forward pass of the model

    def stack_key(self, trial: Trial, assets: Assets) -> Hashable:
        from whichlayers.probes.run_sentence_probes import stack_key

        return stack_key(trial)

    def finetunes(self, trial: Trial) -> bool:
        return False

    def steps(self, trial: Trial) -> int:
        return probe_steps(get_probe(trial))

    def max_epochs(self, trial: Trial) -> int:
        return get_probe(trial).max_epochs

    def evaluations(self, trial: Trial) -> int:
        return 1

    def time_key(self, trials: Sequence[Trial]) -> Hashable:
        """Includes the training size: a step of a timing is an epoch, and its setup is the forward pass."""
        trial = trials[0]
        probe = get_probe(trial)
        settings = (trial.train_size, probe.pooling, probe.batch_size, probe.held_out)
        return self.memory_key(trial), settings

    def scale_timing(self, timing: StackTiming, timed: Trial, other: Trial, assets: Assets) -> StackTiming:
        """Scales an epoch by its number of batches, and the forward pass by its number of tokens."""
        batches = [trial.train_size / get_probe(trial).batch_size for trial in (timed, other)]
        tokens = [
            trial.train_size * mean_length(assets.data(trial).train) + count_eval_tokens(assets.data(trial))
            for trial in (timed, other)
        ]
        step, setup = timing.step * batches[1] / batches[0], timing.setup * tokens[1] / tokens[0]
        return dataclasses.replace(timing, step=step, setup=setup)

    def seconds(self, trial: Trial, stack_size: int, timing: StackTiming, first: bool, bound: int) -> float:
        """Bounds from early stopping: the number of epochs is between the patience and the maximum."""
        probe = get_probe(trial)
        earliest, latest = min(probe.patience + 1, probe.max_epochs), probe.max_epochs
        epochs = (earliest, (earliest + latest) // 2, latest)[bound + 1]
        return timing.seconds(stack_size, epochs, 0, first) * error_factor(timing, bound)

    def work(self, trials: Sequence[Trial], assets: Assets) -> TrialWork:
        """A trial's part of the forward pass in its first steps, then one epoch of its probe in each step."""
        trial = trials[0]
        model, data = assets.model_of(trial), assets.data(trial)
        rows = _count_rows(trials, data)
        tokens = rows * mean_length(data.train) + count_eval_tokens(data)
        return TrialWork(
            step=TRAINING_COST * trial.train_size * model.hidden_size * data.n_outputs,
            first_steps=ENCODER_STEPS,
            first_step=tokens * count_weights(model.depth, model.hidden_size) / ENCODER_STEPS / len(trials),
        )

    def cache_bytes(self, trials: Sequence[Trial], assets: Assets) -> int:
        """Size of the pooled hidden states (float32)."""
        groups: dict[Hashable, list[Trial]] = {}
        for trial in trials:
            key = (
                trial.model_fingerprint,
                trial.task_fingerprint,
                trial.train_size,
                get_probe(trial).pooling,
            )
            groups.setdefault(key, []).append(trial)
        total = 0
        for group in groups.values():
            data, config = assets.data(group[0]), assets.encoder(group[0]).config
            rows = _count_rows(group, data) + sum(len(split) for split in data.evals.values())
            total += rows * (config.num_hidden_layers + 1) * config.hidden_size * 4
        return total

    def run(
        self, trials: Sequence[Trial], worker: WorkerContext, settings: EngineSettings, report: Reporter
    ) -> None:
        from whichlayers.probes.run_sentence_probes import run_probes

        cache = worker.assets.index.cache
        results = run_probes(
            trials,
            worker.assets.encoder(trials[0]),
            worker.assets.data(trials[0]),
            device=worker.device,
            cache=cache and cache / "features",
            on_epoch=report.epoch,
            on_step=report.steps,
        )
        report.results(results)

    def measure_memory(self, trial: Trial, worker: WorkerContext, max_stack: int) -> MemoryCost | None:
        return None

    def measure_time(
        self, trials: Sequence[Trial], worker: WorkerContext, settings: EngineSettings, seconds: float
    ) -> StackTiming:
        from whichlayers.probes.timing import measure_probe_timing

        encoder, data = worker.assets.encoder(trials[0]), worker.assets.data(trials[0])
        return measure_probe_timing(trials, encoder, data, worker.device)


def _count_rows(trials: Sequence[Trial], data: TokenizedTask) -> int:
    """At most how many training examples the probes of a stack use together."""
    return min(len(data.train), trials[0].train_size * len({trial.seed_of("subset") for trial in trials}))
