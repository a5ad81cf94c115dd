"""An interrupted stack resumes from its checkpoint with the same result."""

import dataclasses
import errno
import logging
import os

import pytest
import torch
from tiny import tiny_encoder, tiny_task

from whichlayers.engine import checkpoint
from whichlayers.engine.checkpoint import Checkpoint
from whichlayers.engine.finetune import finetune
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.text import format_bytes
from whichlayers.trial import Surgery, Training, Trial

PER_EPOCH, EPOCHS = 4, 3
RECIPE = Training(epochs=EPOCHS, batch_size=8, lr=3e-3, weight_decay=0.01, dropout=0.1, warmup=0.1)
TRIALS = [
    Trial("tiny", "m", "tiny", "t", 30, 0, training=RECIPE),
    Trial("tiny", "m", "tiny", "t", 30, 1, surgery=Surgery(reinit=(2, 3)), training=RECIPE),
    Trial(
        "tiny", "m", "tiny", "t", 30, 2, surgery=Surgery(reinit=(3,)),
        training=dataclasses.replace(RECIPE, lr=1e-3, lr_factors=((3, 5.0),)),
    ),
]  # fmt: skip
FUSED, FLAT = (
    {},
    {"precision": "bfloat16", "bfloat16_weights": True, "compiled": False},
)  # settings that select one of the two optimizers


@pytest.fixture(autouse=True)
def saves_after_every_step(monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_TIME_FRACTION", float("inf"))


@pytest.fixture(scope="module")
def encoder_and_data():
    return tiny_encoder("bert"), tiny_task()


@pytest.fixture(scope="module")
def uninterrupted(encoder_and_data):
    return {
        precision: finetune(TRIALS, *encoder_and_data, settings=EngineSettings(**kind))
        for precision, kind in (("fused", FUSED), ("flat", FLAT))
    }


class Interrupted(Exception):
    pass


def interrupt(encoder_and_data, folder, after: int, trials=TRIALS, every: float = 0.0, **kind) -> list[int]:
    """Train `after` steps, then raise, as in a crash; returns the numbers of trials of these steps."""
    steps = []

    def on_step(more: int) -> None:
        steps.append(more)
        if len(steps) == after:
            raise Interrupted

    settings = EngineSettings(checkpoint_folder=folder, checkpoint_seconds=every, **kind)
    with pytest.raises(Interrupted):
        finetune(trials, *encoder_and_data, settings=settings, on_step=on_step)
    return steps


def finish(encoder_and_data, folder, trials=TRIALS, **kind):
    steps, restored, epochs = [], [], []
    results = finetune(
        trials,
        *encoder_and_data,
        settings=EngineSettings(checkpoint_folder=folder, checkpoint_seconds=1e9, **kind),
        on_step=steps.append,
        on_restored=restored.append,
        on_epoch=lambda trial_id, record: epochs.append((trial_id, record.epoch)),
    )
    assert sum(steps) + sum(restored) == PER_EPOCH * EPOCHS * len(trials)
    assert len(restored) == (len(steps) < PER_EPOCH * EPOCHS)
    return results, len(steps), epochs


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one.trial_id, one.error) == (other.trial_id, other.error)
        assert [e.epoch for e in one.epochs] == [e.epoch for e in other.epochs]
        for a, b in zip(one.epochs, other.epochs, strict=True):
            assert a.metrics == pytest.approx(b.metrics, abs=1e-6)
            assert (a.train_loss, a.dev_loss) == pytest.approx((b.train_loss, b.dev_loss), abs=1e-6)


# a crash in step n comes before that step is saved; 5 is the first step of the second epoch
@pytest.mark.parametrize("optimizer", ["fused", "flat"])
@pytest.mark.parametrize("after", [2, 3, 4, 5, 6, 9, 12])
def test_resumes_with_the_same_result(encoder_and_data, uninterrupted, tmp_path, optimizer, after):
    kind = {"fused": FUSED, "flat": FLAT}[optimizer]
    interrupt(encoder_and_data, tmp_path, after, **kind)
    results, steps, epochs = finish(encoder_and_data, tmp_path, **kind)
    assert_same(results, uninterrupted[optimizer])
    # before an epoch's evaluation nothing is saved: its last step is done again
    saved = after - 1 if (after - 1) % PER_EPOCH else after - 2
    assert steps == PER_EPOCH * EPOCHS - saved
    assert sorted(epochs) == sorted((t.id, e) for t in TRIALS for e in range(1, EPOCHS + 1))
    assert list(tmp_path.iterdir()) == []


def test_interrupted_twice(encoder_and_data, uninterrupted, tmp_path):
    interrupt(encoder_and_data, tmp_path, 6)
    assert len(interrupt(encoder_and_data, tmp_path, 4)) == 4
    results, steps, _ = finish(encoder_and_data, tmp_path)
    assert steps == 12 - 7  # step 8 ends an epoch
    assert_same(results, uninterrupted["fused"])


@pytest.mark.parametrize("kind", [FUSED, FLAT])
def test_padded_slots_are_not_saved_and_a_stack_resumes_with_any_number_of_slots(
    encoder_and_data, uninterrupted, tmp_path, kind
):
    interrupt(encoder_and_data, tmp_path, 6, slots=5, **kind)
    size = next(tmp_path.iterdir()).stat().st_size
    results, steps, _ = finish(encoder_and_data, tmp_path, slots=4, **kind)
    assert steps == 12 - 5
    assert_same(results, uninterrupted["fused" if kind is FUSED else "flat"])
    interrupt(encoder_and_data, tmp_path, 6, **kind)
    assert next(tmp_path.iterdir()).stat().st_size == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "no header", "other names"])
def test_a_damaged_checkpoint_restarts_the_stack_from_the_beginning(
    encoder_and_data, uninterrupted, tmp_path, damage, caplog
):
    from safetensors.torch import load_file, save_file

    interrupt(encoder_and_data, tmp_path, 6)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    if damage == "other names":
        save_file(load_file(file) | {"work/more": torch.zeros(1)}, file)  # this drops the metadata, too
    else:
        pieces = {"cut": whole[:-100], "empty": b"", "noise": b"\xff" * 5000, "no header": whole[64:]}
        file.write_bytes(pieces[damage])
    results, steps, _ = finish(encoder_and_data, tmp_path)
    assert steps == 12
    assert_same(results, uninterrupted["fused"])
    assert "damaged" in caplog.text
    assert not file.exists()


def test_a_checkpoint_of_other_trials_is_ignored(encoder_and_data, uninterrupted, tmp_path):
    interrupt(encoder_and_data, tmp_path, 6, trials=TRIALS[:2])
    (of_two,) = tmp_path.iterdir()
    assert finish(encoder_and_data, tmp_path)[1] == 12
    # not even under the name of the other stack
    interrupt(encoder_and_data, tmp_path, 6, trials=[TRIALS[1], TRIALS[0], TRIALS[2]])
    (of_others,) = set(tmp_path.iterdir()) - {of_two}
    expected = Checkpoint(EngineSettings(checkpoint_folder=tmp_path), TRIALS[:2]).file
    of_others.replace(expected)
    results, steps, _ = finish(encoder_and_data, tmp_path, trials=TRIALS[:2])
    assert steps == 12
    assert_same(results, uninterrupted["fused"][:2])


def test_a_full_disk_is_reported_once_and_training_continues(
    encoder_and_data, uninterrupted, tmp_path, monkeypatch, caplog
):
    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write_safetensors", full)
    settings = EngineSettings(checkpoint_folder=tmp_path / "in" / "a", checkpoint_seconds=0)
    with caplog.at_level(logging.WARNING):
        results = finetune(TRIALS, *encoder_and_data, settings=settings)
    assert_same(results, uninterrupted["fused"])
    assert [r.message for r in caplog.records if "No space left" in r.message][1:] == []
    assert "No space left" in caplog.text
    assert list((tmp_path / "in" / "a").iterdir()) == []


def test_a_checkpoint_is_written_atomically(encoder_and_data, tmp_path, monkeypatch):
    from safetensors.torch import load_file

    interrupt(encoder_and_data, tmp_path, 3)
    (file,) = tmp_path.iterdir()
    before = load_file(file)
    monkeypatch.setattr(os, "replace", lambda a, b: (_ for _ in ()).throw(OSError("killed here")))
    interrupt(encoder_and_data, tmp_path, 2)
    assert list(tmp_path.iterdir()) == [file]
    assert before["run/step"] == load_file(file)["run/step"] == 2


def test_saving_takes_a_small_fraction_of_the_time(encoder_and_data, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoint, "MAX_TIME_FRACTION", 0.05)
    saved = []

    def slow(self, trainer, results):
        saved.append(now[0])
        now[0] += 60  # a large stack on a slow disk

    monkeypatch.setattr(Checkpoint, "save", slow)
    monkeypatch.setattr(Checkpoint, "_lack_of_space", lambda self, trainer: None)
    one = Checkpoint(EngineSettings(checkpoint_folder=tmp_path, checkpoint_seconds=300), TRIALS)
    for _ in range(100):
        now[0] += 60
        one.save_if_due(None, [])
    assert saved == [300, 300 + 60 + 1200, 300 + 60 + 1200 + 60 + 1200, *saved[3:]]


@pytest.mark.parametrize("spare", [-1, 0])
def test_a_checkpoint_that_would_fill_the_disk_is_not_written(
    encoder_and_data, tmp_path, monkeypatch, caplog, spare
):
    trainer = StackTrainer(TRIALS, *encoder_and_data, torch.device("cpu"), EngineSettings())
    size = sum(t.numel() * t.element_size() for t in trainer.state().values())
    free = size + checkpoint.MIN_FREE_BYTES + spare
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda folder: type("", (), {"free": free})())
    one = Checkpoint(EngineSettings(checkpoint_folder=tmp_path, checkpoint_seconds=0), TRIALS)
    for _ in range(2):
        one.save_if_due(trainer, [])
    assert one.file.exists() == (spare == 0)
    assert len(caplog.records) == (spare < 0)  # once
    if spare < 0:
        message = caplog.records[0].getMessage()
        assert (
            f"{len(TRIALS)} trials takes {format_bytes(size)}, and {format_bytes(free)} are free" in message
        )
        assert "its 0 s of training are repeated" in message


def test_the_state_of_a_trainer_is_all_that_changes(encoder_and_data):
    """Two steps from a copied state and two steps from the state itself give the same bits."""
    settings = EngineSettings()
    trainer = StackTrainer(TRIALS, *encoder_and_data, torch.device("cpu"), settings)
    other = StackTrainer(TRIALS, *encoder_and_data, torch.device("cpu"), settings)
    trainer.model.train(), other.model.train()
    for step in range(3):
        trainer.step_runner(step)
    assert other.load_state({name: tensor.clone() for name, tensor in trainer.state().items()}) == 3
    for step in (3, 4):
        trainer.step_runner(step)
        other.step_runner(step)
    for name, tensor in trainer.state().items():
        assert torch.equal(tensor, other.state()[name]), name
