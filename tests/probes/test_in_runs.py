"""Probes in a run: which share a stack, how many steps they count for, and how they are run."""

import dataclasses
from types import SimpleNamespace

import pytest
from tiny import tiny_encoder, tiny_task

from whichlayers.runs.assets import Assets
from whichlayers.runs.executors.worker import MeasureMemory, TrialRunner, train_stack, train_stack_memory
from whichlayers.runs.plan import Stack, make_stacks, memory_key, trial_steps
from whichlayers.runs.resources import Resources, representative_trials
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
    config = SimpleNamespace(device="cpu", threads=1, checkpoints=None, checkpoint_seconds=0)
    return SimpleNamespace(config=config, assets=assets)  # type: ignore[return-value]


def test_all_layers_and_seeds_are_one_stack_for_any_number_of_workers():
    resources = Resources(("cpu",), workers=4, threads=1, max_stack=4)
    finetuned = [dataclasses.replace(FINETUNED, seed=seed) for seed in range(8)]
    assets = Assets(None)
    assets._model_info = {"model": SimpleNamespace(family="bert", depth=3)}
    stacks = make_stacks([*PROBES, *finetuned], assets.stack_key, resources.stack_size, workers=4)
    sizes = sorted(len(stack.trials) for stack in stacks)
    assert sizes == [4, 4, 20]
    assert all(len({trial.probe is None for trial in stack.trials}) == 1 for stack in stacks)


def test_memory_is_measured_only_for_finetuning(tmp_path):
    large = dataclasses.replace(PROBES[0], train_size=60)
    assert memory_key(large) != memory_key(FINETUNED)
    representatives = representative_trials([large, FINETUNED, *PROBES])
    assert representatives == [large, FINETUNED]
    probes, finetuned = train_stack_memory(
        MeasureMemory(representatives, ("cpu",), 1), runner_of(tmp_path)
    ).costs
    assert probes is None
    assert finetuned is not None


def test_a_stack_of_probes(tmp_path):
    steps, reported = [], []
    stack = Stack(0, tuple(PROBES))
    results = train_stack(
        stack, runner_of(tmp_path), lambda trial_id, epoch: reported.append(trial_id), steps.append
    )
    assert [o.trial_id for o in results] == reported == stack.trial_ids
    assert [len(o.epochs) for o in results] == [1] * 20
    assert sum(steps) == stack.steps == 20 * trial_steps(PROBES[0])
    assert sorted(file.suffix for file in (tmp_path / "features").iterdir()) == [
        ".lock",
        ".lock",
        ".npy",
        ".npy",
    ]


def test_a_probe_counts_for_less_than_its_optimizer_steps():
    trial = dataclasses.replace(FINETUNED, train_size=60_000, probe=Probe(1))
    assert trial_steps(trial) == pytest.approx(80)
