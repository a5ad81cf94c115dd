"""The interface of trial handlers: everything that depends on the kind of a trial.

A handler is a small object without state, which is pickled and sent to workers. Importing it does not import torch:
`plan` and `status` use handlers as well.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from whichlayers.engine.cost import MemoryCost, StackTiming, TrialWork
from whichlayers.engine.settings import EngineSettings
from whichlayers.results.db import ResultsDB
from whichlayers.runs.assets import Assets
from whichlayers.runs.events import Reporter
from whichlayers.trial import Trial, TrialKind

if TYPE_CHECKING:
    from whichlayers.data.tokenize import TokenizedSplit, TokenizedTask
    from whichlayers.engine.compile_ahead import CompileJob

MAX_TIMING_ERROR = 0.4
TRAINING_COST = 3  # of a training step, relative to its forward pass: the backward pass takes twice as long
# bytes in results.db, indices included: a metric of an epoch
VALUE_BYTES = 60
VALUES_PER_EPOCH = 4  # two losses, seconds, a metric


@dataclass
class WorkerContext:
    """What a process that runs stacks provides to handlers.

    Args:
        device: Where to train.
        threads: Number of CPU threads.
        load_assets: Returns the models and data; called when they are first used.
        finetuned_models: Folder for models that word probes need; None: they are kept in memory.
    """

    device: str
    threads: int
    load_assets: Callable[[], Assets]
    finetuned_models: Path | None = None

    @cached_property
    def assets(self) -> Assets:
        return self.load_assets()

    @property
    def on_cuda(self) -> bool:
        return self.device.startswith("cuda")


class TrialHandler(ABC):
    """Plans, measures and runs trials of one kind."""

    # maximum number of models in a stack, whatever the memory and the workers
    fixed_stack_size: int | None = None
    # whether finetuned models are kept on disk until their trials are finished
    needs_model_folder: bool = False
    # whether `scale_timing` can replace a measurement
    timing_scales: bool = True

    # --- plan ---

    @abstractmethod
    def stack_key(self, trial: Trial, assets: Assets) -> Hashable:
        """Trials with equal keys may share a stack."""

    @abstractmethod
    def finetunes(self, trial: Trial) -> bool:
        """Whether a model is finetuned, which takes memory for each model and is checkpointed."""

    @abstractmethod
    def steps(self, trial: Trial) -> int:
        """Steps of the trial, without those that it shares with other trials."""

    def shared_steps(self, trial: Trial) -> dict[Hashable, int]:
        """Steps that count once for all trials with the same key."""
        return {}

    def max_epochs(self, trial: Trial) -> int:
        """The largest number of an epoch of this trial in results.db."""
        return trial.training.epochs

    def group_by_model(self, trials: Sequence[Trial]) -> list[Sequence[Trial]]:
        """The trials of each model of a stack; these stay together when the stack is split."""
        return [[trial] for trial in trials]

    def kept_models(self, trials: Sequence[Trial]) -> list[Trial]:
        """The finetuning trials whose models are kept on disk until these trials are finished."""
        return []

    def task_name(self, trial: Trial) -> str:
        """The task, as the table of `whichlayers plan` names it."""
        return trial.task

    def compiles_ahead(self, trial: Trial) -> bool:
        """Whether a stack of such trials is compiled while the one before it trains, on a GPU with enough memory."""
        return False

    # --- estimates ---

    def memory_key(self, trial: Trial) -> Hashable:
        """Everything that determines the memory of a stack of such trials, except its size and the training size."""
        order, training = trial.surgery.order, trial.training
        return (
            trial.kind,
            trial.model_fingerprint,
            trial.task_fingerprint,
            None if order is None else len(order),
            (training.batch_size, training.max_length, training.dropout, training.precision),
            trial.trained_part,
        )

    def time_key(self, trials: Sequence[Trial]) -> Hashable:
        """Everything that determines the timing of a stack of these trials, except its size and its steps."""
        return self.memory_key(trials[0])

    def scale_timing(self, timing: StackTiming, timed: Trial, other: Trial, assets: Assets) -> StackTiming:
        """The timing of stacks of trials like `timed`, scaled to those like `other` with the same model."""
        timed_data, other_data = assets.data(timed), assets.data(other)
        step_ratio = mean_length(other_data.train) / mean_length(timed_data.train)
        step_ratio *= other.training.batch_size / timed.training.batch_size
        eval_ratio = count_eval_tokens(other_data) / max(1, count_eval_tokens(timed_data))
        step = timing.fixed_step + (timing.step - timing.fixed_step) * step_ratio
        return dataclasses.replace(timing, step=step, evaluation=timing.evaluation * eval_ratio)

    def evaluations(self, trial: Trial) -> int:
        """How often a trial is evaluated."""
        return 1 if trial.training.evaluate == "end" else trial.training.epochs

    def seconds(self, trial: Trial, stack_size: int, timing: StackTiming, first: bool, bound: int) -> float:
        """Estimated seconds of a stack of such trials.

        Args:
            trial: A trial of the stack.
            stack_size: Number of models in the stack.
            timing: Of such stacks.
            first: Whether it is the first stack of its shape in its worker.
            bound: -1 for the lower bound, 0 for the expected time, 1 for the upper bound.
        """
        seconds = timing.seconds(stack_size, trial.steps, self.evaluations(trial), first)
        return seconds * error_factor(timing, bound)

    def work(self, trials: Sequence[Trial], assets: Assets) -> TrialWork:
        """Relative cost of the steps and evaluations of each trial of such a stack, for the time left of a run."""
        return TrialWork()

    def result_bytes(self, trial: Trial, depth: int) -> int:
        """Size of the epochs and weight changes of a trial in results.db; `depth` is the depth of its model."""
        return VALUE_BYTES * VALUES_PER_EPOCH * self.evaluations(trial)

    def cache_bytes(self, trials: Sequence[Trial], assets: Assets) -> int:
        """Size of what these trials write to the cache, apart from tokenized tasks."""
        return 0

    def activation_bytes(self, trial: Trial, assets: Assets) -> int:
        """Size of the hidden states that a worker keeps on disk while it runs such a trial on CPU."""
        return 0

    # --- run ---

    def restore(self, db: ResultsDB, cache: Path | None) -> None:  # noqa: B027 (most kinds restore nothing)
        """Restore files in the cache from the results of earlier runs; called before the first stack."""

    def prepare(self, worker: WorkerContext) -> None:
        """Called in a worker before each of the methods below."""
        import torch

        torch.set_num_threads(worker.threads)

    def preload(self, trials: Sequence[Trial], worker: WorkerContext) -> None:
        """Load what `run` will need into host memory, in a background thread while another stack trains.

        It must not use the device, because another thread may be capturing a CUDA graph, and no global random
        generator. Its errors are ignored: `run` raises them again.
        """
        worker.assets.load(trials[0])

    def plan_compile_job(
        self, trials: Sequence[Trial], worker: WorkerContext, settings: EngineSettings
    ) -> CompileJob | None:
        """What to compile before a stack's turn, after `preload` and in the same thread; None: nothing."""
        return None

    @abstractmethod
    def run(
        self, trials: Sequence[Trial], worker: WorkerContext, settings: EngineSettings, report: Reporter
    ) -> None:
        """Run the trials of a stack and report one result for each of them.

        Args:
            trials: Trials with equal stack keys.
            worker: Device, models and data.
            settings: Slots and checkpoints of the stack.
            report: Where results and progress are reported.
        """

    @abstractmethod
    def measure_memory(self, trial: Trial, worker: WorkerContext, max_stack: int) -> MemoryCost | None:
        """Memory of a stack of such trials; None if it does not depend on their number, or is unknown.

        Raises:
            WhichlayersError: A single trial does not fit.
        """

    @abstractmethod
    def measure_time(
        self, trials: Sequence[Trial], worker: WorkerContext, settings: EngineSettings, seconds: float
    ) -> StackTiming:
        """Time a stack of these trials in about `seconds`."""


Handlers = Mapping[TrialKind, TrialHandler]


def error_factor(timing: StackTiming, bound: int) -> float:
    """Factor from the expected time to its lower bound (-1), itself (0) or its upper bound (1): two standard errors."""
    return 1 + 2 * bound * min(timing.error, MAX_TIMING_ERROR)


def mean_length(split: TokenizedSplit) -> float:
    """Mean number of tokens of an example."""
    return int(split.offsets[-1]) / max(1, len(split))


def count_eval_tokens(data: TokenizedTask) -> int:
    """Number of tokens of all splits on which trials are evaluated."""
    return sum(int(split.offsets[-1]) for split in data.evals.values())


def count_weights(depth: int, hidden_size: int) -> int:
    """Number of weights in this many Transformer layers, with the usual inner size of 4 x hidden_size."""
    return 12 * depth * hidden_size**2
