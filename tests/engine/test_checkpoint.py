"""A stack that was broken off goes on from its checkpoint and ends as if nothing had happened."""

import dataclasses
import errno
import logging

import pytest
import torch
from tiny import tiny_encoder, tiny_task

from whichlayers.engine import checkpoint
from whichlayers.engine.checkpoint import Checkpoint
from whichlayers.engine.finetune import finetune
from whichlayers.engine.results import EngineSettings
from whichlayers.engine.stack_trainer import StackRun
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
FUSED, FLAT = {}, {"precision": "bfloat16", "compiled": False}  # which optimiser a precision gets


@pytest.fixture(autouse=True)
def saves_after_every_step(monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", float("inf"))


@pytest.fixture(scope="module")
def subjects():
    return tiny_encoder("bert"), tiny_task()


@pytest.fixture(scope="module")
def undisturbed(subjects):
    return {
        precision: finetune(TRIALS, *subjects, settings=EngineSettings(**kind))
        for precision, kind in (("fused", FUSED), ("flat", FLAT))
    }


class Broken(Exception):
    pass


def break_off(subjects, folder, after: int, trials=TRIALS, every: float = 0.0, **kind) -> list[int]:
    """Train `after` steps, then raise, as a crash would; the steps of this attempt."""
    steps = []

    def on_step(more: int) -> None:
        steps.append(more)
        if len(steps) == after:
            raise Broken

    settings = EngineSettings(checkpoint_folder=folder, checkpoint_seconds=every, **kind)
    with pytest.raises(Broken):
        finetune(trials, *subjects, settings=settings, on_step=on_step)
    return steps


def finish(subjects, folder, trials=TRIALS, **kind):
    steps, restored, epochs = [], [], []
    outcomes = finetune(
        trials,
        *subjects,
        settings=EngineSettings(checkpoint_folder=folder, checkpoint_seconds=1e9, **kind),
        on_step=steps.append,
        on_restored=restored.append,
        on_epoch=lambda trial_id, record: epochs.append((trial_id, record.epoch)),
    )
    assert sum(steps) + sum(restored) == PER_EPOCH * EPOCHS * len(trials)
    assert len(restored) == (len(steps) < PER_EPOCH * EPOCHS)
    return outcomes, len(steps), epochs


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one.trial_id, one.error) == (other.trial_id, other.error)
        assert [e.epoch for e in one.epochs] == [e.epoch for e in other.epochs]
        for a, b in zip(one.epochs, other.epochs, strict=True):
            assert a.metrics == pytest.approx(b.metrics, abs=1e-6)
            assert (a.train_loss, a.dev_loss) == pytest.approx((b.train_loss, b.dev_loss), abs=1e-6)


# a crash in step n comes before that step is saved; 5 is the first step of the second epoch
@pytest.mark.parametrize("optimiser", ["fused", "flat"])
@pytest.mark.parametrize("after", [2, 3, 4, 5, 6, 9, 12])
def test_goes_on_with_the_same_result(subjects, undisturbed, tmp_path, optimiser, after):
    kind = {"fused": FUSED, "flat": FLAT}[optimiser]
    break_off(subjects, tmp_path, after, **kind)
    outcomes, steps, epochs = finish(subjects, tmp_path, **kind)
    assert_same(outcomes, undisturbed[optimiser])
    # before an epoch's evaluation nothing is saved: its last step is done again
    saved = after - 1 if (after - 1) % PER_EPOCH else after - 2
    assert steps == PER_EPOCH * EPOCHS - saved
    assert sorted(epochs) == sorted((t.id, e) for t in TRIALS for e in range(1, EPOCHS + 1))
    assert list(tmp_path.iterdir()) == []


def test_broken_off_twice(subjects, undisturbed, tmp_path):
    break_off(subjects, tmp_path, 6)
    assert len(break_off(subjects, tmp_path, 4)) == 4
    outcomes, steps, _ = finish(subjects, tmp_path)
    assert steps == 12 - 7  # step 8 ends an epoch
    assert_same(outcomes, undisturbed["fused"])


@pytest.mark.parametrize("kind", [FUSED, FLAT])
def test_slots_that_fill_a_stack_up_are_not_saved_and_any_number_of_them_may_follow(
    subjects, undisturbed, tmp_path, kind
):
    break_off(subjects, tmp_path, 6, slots=5, **kind)
    size = next(tmp_path.iterdir()).stat().st_size
    outcomes, steps, _ = finish(subjects, tmp_path, slots=4, **kind)
    assert steps == 12 - 5
    assert_same(outcomes, undisturbed["fused" if kind is FUSED else "flat"])
    break_off(subjects, tmp_path, 6, **kind)
    assert next(tmp_path.iterdir()).stat().st_size == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "no header", "other names"])
def test_a_damaged_checkpoint_starts_the_stack_anew(subjects, undisturbed, tmp_path, damage, caplog):
    from safetensors.torch import load_file, save_file

    break_off(subjects, tmp_path, 6)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    if damage == "other names":
        save_file(load_file(file) | {"work/more": torch.zeros(1)}, file)  # and its metadata are lost
    else:
        pieces = {"cut": whole[:-100], "empty": b"", "noise": b"\xff" * 5000, "no header": whole[64:]}
        file.write_bytes(pieces[damage])
    outcomes, steps, _ = finish(subjects, tmp_path)
    assert steps == 12
    assert_same(outcomes, undisturbed["fused"])
    assert "damaged" in caplog.text
    assert not file.exists()


def test_a_checkpoint_of_other_trials_is_not_taken(subjects, undisturbed, tmp_path):
    break_off(subjects, tmp_path, 6, trials=TRIALS[:2])
    (of_two,) = tmp_path.iterdir()
    assert finish(subjects, tmp_path)[1] == 12
    # not even under the name of these
    break_off(subjects, tmp_path, 6, trials=[TRIALS[1], TRIALS[0], TRIALS[2]])
    (of_others,) = set(tmp_path.iterdir()) - {of_two}
    mine = Checkpoint(EngineSettings(checkpoint_folder=tmp_path), TRIALS[:2]).file
    of_others.replace(mine)
    outcomes, steps, _ = finish(subjects, tmp_path, trials=TRIALS[:2])
    assert steps == 12
    assert_same(outcomes, undisturbed["fused"][:2])


def test_a_full_disk_is_told_once_and_the_stack_goes_on(subjects, undisturbed, tmp_path, monkeypatch, caplog):
    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write", full)
    settings = EngineSettings(checkpoint_folder=tmp_path / "in" / "a", checkpoint_seconds=0)
    with caplog.at_level(logging.WARNING):
        outcomes = finetune(TRIALS, *subjects, settings=settings)
    assert_same(outcomes, undisturbed["fused"])
    assert [r.message for r in caplog.records if "No space left" in r.message][1:] == []
    assert "No space left" in caplog.text
    assert list((tmp_path / "in" / "a").iterdir()) == []


def test_a_checkpoint_is_there_whole_or_not_at_all(subjects, tmp_path, monkeypatch):
    from safetensors.torch import load_file

    break_off(subjects, tmp_path, 3)
    (file,) = tmp_path.iterdir()
    before = load_file(file)
    monkeypatch.setattr(checkpoint.os, "replace", lambda a, b: (_ for _ in ()).throw(OSError("killed here")))
    break_off(subjects, tmp_path, 2)
    assert list(tmp_path.iterdir()) == [file]
    assert before["run/step"] == load_file(file)["run/step"] == 2


def test_saving_takes_a_small_share_of_the_time(subjects, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 0.05)
    saved = []

    def slow(self, run, outcomes):
        saved.append(now[0])
        now[0] += 60  # a large stack on a slow disk

    monkeypatch.setattr(Checkpoint, "save", slow)
    one = Checkpoint(EngineSettings(checkpoint_folder=tmp_path, checkpoint_seconds=300), TRIALS)
    for _ in range(100):
        now[0] += 60
        one.save_when_due(None, [])
    assert saved == [300, 300 + 60 + 1200, 300 + 60 + 1200 + 60 + 1200, *saved[3:]]


def test_the_state_of_a_run_is_all_that_changes(subjects):
    """Two steps from a copied state and two steps from the state itself give the same bits."""
    settings = EngineSettings()
    run = StackRun(TRIALS, *subjects, torch.device("cpu"), settings)
    other = StackRun(TRIALS, *subjects, torch.device("cpu"), settings)
    run.stack.train(), other.stack.train()
    for step in range(3):
        run.runner(step)
    assert other.load_state({name: tensor.clone() for name, tensor in run.state().items()}) == 3
    for step in (3, 4):
        run.runner(step)
        other.runner(step)
    for name, tensor in run.state().items():
        assert torch.equal(tensor, other.state()[name]), name
