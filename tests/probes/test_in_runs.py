"""How a run treats probes: which share a stack, what they count for, who computes them."""

import dataclasses
from types import SimpleNamespace

import pytest
from tiny import tiny_encoder, tiny_task

from whichlayers.runs.assets import Subjects
from whichlayers.runs.executors.worker import Measure, Workplace, train_stack, train_stack_room
from whichlayers.runs.plan import Stack, make_stacks, memory_key, steps_of
from whichlayers.runs.resources import Means, kinds_of
from whichlayers.trial import Probe, Trial

FINETUNED = Trial("tiny", "model", "tiny", "tiny", 40, 0)
PROBES = [
    dataclasses.replace(FINETUNED, seed=seed, probe=Probe(layer, max_epochs=3))
    for layer in range(4)
    for seed in range(5)
]


def workplace_of(tmp_path) -> Workplace:
    encoder, data = tiny_encoder("bert"), tiny_task()
    subjects = SimpleNamespace(
        encoder=lambda trial: encoder,
        data=lambda trial: data,
        catalogue=SimpleNamespace(cache=tmp_path),
    )
    setup = SimpleNamespace(device="cpu", threads=1, checkpoints=None, checkpoint_seconds=0)
    return SimpleNamespace(setup=setup, subjects=subjects)  # type: ignore[return-value]


def test_all_layers_and_seeds_are_one_stack_however_many_workers():
    means = Means(("cpu",), workers=4, threads=1, max_stack=4)
    finetuned = [dataclasses.replace(FINETUNED, seed=seed) for seed in range(8)]
    subjects = Subjects(None)
    subjects._facts = {"model": SimpleNamespace(family="bert", depth=3)}
    stacks = make_stacks([*PROBES, *finetuned], subjects.stack_key, means.size_for, workers=4)
    sizes = sorted(len(stack.trials) for stack in stacks)
    assert sizes == [4, 4, 20]
    assert all(len({trial.probe is None for trial in stack.trials}) == 1 for stack in stacks)


def test_memory_is_measured_for_what_is_finetuned_alone(tmp_path):
    large = dataclasses.replace(PROBES[0], train_size=60)
    assert memory_key(large) != memory_key(FINETUNED)
    kinds = kinds_of([large, FINETUNED, *PROBES])
    assert kinds == [large, FINETUNED]
    probes, finetuned = train_stack_room(Measure(kinds, ("cpu",), 1), workplace_of(tmp_path)).needs
    assert probes is None
    assert finetuned is not None


def test_a_stack_of_probes_is_probed(tmp_path):
    steps, told = [], []
    stack = Stack(0, tuple(PROBES))
    outcomes = train_stack(
        stack, workplace_of(tmp_path), lambda trial_id, epoch: told.append(trial_id), steps.append
    )
    assert [o.trial_id for o in outcomes] == told == stack.trial_ids
    assert [len(o.epochs) for o in outcomes] == [1] * 20
    assert sum(steps) == stack.steps == 20 * steps_of(PROBES[0])
    assert sorted(file.suffix for file in (tmp_path / "features").iterdir()) == [
        ".lock",
        ".lock",
        ".npy",
        ".npy",
    ]


def test_a_probe_counts_for_less_than_its_optimiser_steps():
    trial = dataclasses.replace(FINETUNED, train_size=60_000, probe=Probe(1))
    assert steps_of(trial) == pytest.approx(80)
