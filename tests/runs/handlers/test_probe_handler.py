"""Probes in a run: which share a stack, how many steps they count for, and how they are run."""

import dataclasses
from collections.abc import Hashable
from types import SimpleNamespace

import pytest
from tiny import tiny_encoder, tiny_task

from whichlayers.engine.cost import StackTiming
from whichlayers.runs import events
from whichlayers.runs.assets import Assets
from whichlayers.runs.events import EpochDone, StackDone, StepsDone, TrialsDone
from whichlayers.runs.executors.worker import MeasureMemory, TrialRunner, WorkerConfig
from whichlayers.runs.handlers import HANDLERS
from whichlayers.runs.plan import (
    Stack,
    make_stacks,
    memory_key,
    representative_trials,
    stack_key_fn,
    trial_steps,
)
from whichlayers.runs.resources import Resources
from whichlayers.trial import Probe, Trial

FINETUNED = Trial("tiny", "model", "tiny", "tiny", 40, 0)
PROBES = [
    dataclasses.replace(FINETUNED, seed=seed, probe=Probe(layer, max_epochs=3))
    for layer in range(4)
    for seed in range(5)
]


def runner_of(tmp_path) -> TrialRunner:
    encoder, data = tiny_encoder("bert"), tiny_task()
    assets = SimpleNamespace(
        encoder=lambda trial: encoder,
        data=lambda trial: data,
        index=SimpleNamespace(cache=tmp_path),
    )
    return TrialRunner(WorkerConfig(HANDLERS, "cpu", 1), assets)  # type: ignore[arg-type]


def test_all_layers_and_seeds_are_one_stack_for_any_number_of_workers():
    resources = Resources(("cpu",), workers=4, threads=1, max_stack=4)
    finetuned = [dataclasses.replace(FINETUNED, seed=seed) for seed in range(8)]
    assets = Assets(None)
    assets._model_info = {"model": SimpleNamespace(family="bert", depth=3, layers_differ=False)}
    stacks = make_stacks(
        [*PROBES, *finetuned], stack_key_fn(HANDLERS, assets), resources.stack_size, workers=4
    )
    sizes = sorted(len(stack.trials) for stack in stacks)
    assert sizes == [4, 4, 20]
    assert all(len({trial.probe is None for trial in stack.trials}) == 1 for stack in stacks)


def test_memory_is_measured_only_for_finetuning(tmp_path):
    large = dataclasses.replace(PROBES[0], train_size=60)
    assert memory_key(large) != memory_key(FINETUNED)
    representatives = representative_trials([large, FINETUNED, *PROBES])
    assert representatives == [large, FINETUNED]
    request = MeasureMemory(representatives, ("cpu",), 1)
    probes, finetuned = runner_of(tmp_path).measure_memory(request).costs
    assert probes is None
    assert finetuned is not None


def test_probes_on_training_subsets_of_different_sizes_are_timed_separately():
    def key_of(size: int, **settings) -> Hashable:
        probe = Probe(1, **settings)
        return Stack(0, (dataclasses.replace(FINETUNED, train_size=size, probe=probe),)).time_key

    assert key_of(500) == key_of(500, lr=0.1, patience=2)
    keys = [key_of(500), key_of(50_000), key_of(500, batch_size=64), key_of(500, pooling="summary")]
    assert len(set(keys)) == 4
    finetuned = [Stack(0, (dataclasses.replace(FINETUNED, train_size=size),)) for size in (500, 50_000)]
    assert finetuned[0].time_key == finetuned[1].time_key


def test_the_timing_of_probes_is_scaled_to_another_training_size():
    handler, data = HANDLERS["probe"], tiny_task()
    assets = SimpleNamespace(data=lambda trial: data)
    timing = StackTiming(trials=4, setup=10, compile=0, capture=0, step=2, error=0.1, evaluation=0, finish=0)
    small, large = (dataclasses.replace(PROBES[0], train_size=size) for size in (100, 10_000_000))
    scaled = handler.scale_timing(timing, small, large, assets)
    assert scaled.step == 2 * 100_000
    assert 0 < scaled.setup <= 10 * 100_000  # the examples for evaluation stay the same
    larger_batches = dataclasses.replace(small, probe=Probe(1, batch_size=16))
    assert handler.scale_timing(timing, small, larger_batches, assets).step == 1
    assert handler.scale_timing(timing, small, small, assets) == timing


def test_a_stack_of_probes(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "PROGRESS_SECONDS", 0.0)
    sent = []
    stack = Stack(0, tuple(PROBES))
    runner_of(tmp_path).run(stack, sent.append)
    (results,) = [event.results for event in sent if isinstance(event, TrialsDone)]
    epochs = [event.trial_id for event in sent if isinstance(event, EpochDone)]
    assert [result.trial_id for result in results] == epochs == stack.trial_ids
    assert [len(result.epochs) for result in results] == [1] * 20
    steps = [event.steps for event in sent if isinstance(event, StepsDone)]
    assert steps == sorted(steps)
    assert steps[-1] == stack.steps == 20 * trial_steps(PROBES[0])
    assert sent[-1] == StackDone(0)
    assert sorted(file.suffix for file in (tmp_path / "features").iterdir()) == [
        ".lock",
        ".lock",
        ".npy",
        ".npy",
    ]


def test_a_probe_counts_for_less_than_its_optimizer_steps():
    trial = dataclasses.replace(FINETUNED, train_size=60_000, probe=Probe(1))
    assert trial_steps(trial) == pytest.approx(80)
