"""Whole stacks on a fake CUDA device, their steps captured and replayed; see tests/helpers/fake_graphs.py."""

import dataclasses

import pytest
import torch
from fake_cuda import DEVICE, NotCapturable
from fake_graphs import fake_graphs
from test_fake_cuda import SETTINGS, TRAINING
from tiny import DECODERS, tiny_encoder, tiny_task

from whichlayers.engine.checkpoint import Checkpoint
from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.finetune import finetune
from whichlayers.engine.results import TrialResult
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.trial import Trial


def trials_of(family: str, **fields) -> list[Trial]:
    settings = {"head": "last" if family in DECODERS else "mean", "training": TRAINING} | fields
    return [Trial("m", "m", "t", "t", 52, seed, **settings) for seed in range(2)]


def run(family: str, setting: str | None = None, **settings):
    """Finetune two trials, with their weights and those of their head."""
    fields = dict(SETTINGS[setting](family)) if setting else {}
    kind, recompute = fields.pop("kind", "classification"), fields.pop("recompute", None)
    weights = {}
    results = finetune(
        trials_of(family, **fields),
        tiny_encoder(family),
        tiny_task(kind=kind),
        device="cuda",
        on_loss=lambda step, losses: None,
        on_trained=lambda result, values: weights.update({result.trial_id: values}),
        with_head=True,
        settings=EngineSettings(compiled=False, recompute=recompute, **settings),
    )
    assert all(result.error is None and len(result.epochs) == 2 for result in results)
    assert len(weights) == 2
    return results


CASES = [("bert", setting) for setting in (None, *SETTINGS)]
CASES += [("gpt2", "cached prefix"), ("gpt2", "lora"), ("llama", None), ("llama", "lora"), ("xlnet", None)]


@pytest.mark.parametrize(("family", "setting"), CASES)
def test_every_replay_does_what_was_captured(family, setting, monkeypatch):
    with fake_graphs(monkeypatch) as graphs:
        run(family, setting)
        assert graphs.replays > 0


SETTINGS_OF_STACK = EngineSettings(compiled=False)


def start() -> StackTrainer:
    """A stack of BERT models, of which one step is captured."""
    trainer = StackTrainer(trials_of("bert"), tiny_encoder("bert"), tiny_task(), DEVICE, SETTINGS_OF_STACK)
    sizes = trainer.step_runner.sizes
    sizes[:] = sizes.max()
    for step in range(3):
        trainer.step_runner(step)
    return trainer


def test_a_stack_can_be_restored_after_its_steps_were_captured(tmp_path, monkeypatch):
    with fake_graphs(monkeypatch) as graphs:
        trainer = start()
        settings = dataclasses.replace(SETTINGS_OF_STACK, checkpoint_folder=tmp_path, checkpoint_seconds=0.0)
        results = [TrialResult(trial.id) for trial in trainer.trials]
        checkpoint = Checkpoint(settings, trainer.trials)
        checkpoint.save_if_due(trainer, results)
        assert checkpoint.file.is_file()
        checkpoint.restore(trainer, results)
        before = graphs.replays
        trainer.step_runner(0)
        assert graphs.replays == before + 1


def replace_a_tensor(trainer: StackTrainer) -> None:
    trainer.loss_sum = torch.zeros_like(trainer.loss_sum)


def replace_weights(trainer: StackTrainer) -> None:
    parameter = trainer.parameters[3].param
    parameter.data = parameter.data.clone()


def change_a_number(trainer: StackTrainer) -> None:
    dropout = next(m for m in trainer.model.modules() if isinstance(m, StackedDropout))
    dropout.p = 0.2


def use_what_a_step_computed(trainer: StackTrainer) -> None:
    found = []
    losses = trainer.example_losses
    trainer.example_losses = lambda *inputs: found.append(losses(*inputs)) or found[-1]
    trainer.step_runner(0)
    found[0].sum()


def evaluate_in_training_mode(trainer: StackTrainer) -> None:
    trainer.evaluate()
    trainer.model.eval()


MISTAKES = (
    replace_a_tensor,
    replace_weights,
    change_a_number,
    use_what_a_step_computed,
    evaluate_in_training_mode,
)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_a_replay_would_not_do_is_noticed(mistake, monkeypatch):
    with fake_graphs(monkeypatch):
        trainer = start()
        trainer.step_runner(0)

        def repeat() -> None:
            mistake(trainer)
            trainer.step_runner(0)

        with pytest.raises(NotCapturable):
            repeat()


def test_a_step_that_cannot_be_captured_is_an_error_here(monkeypatch):
    with fake_graphs(monkeypatch):
        step = StackTrainer.train_step

        def reads_a_value(self, size):
            step(self, size)
            float(self.loss_sum[0])

        monkeypatch.setattr(StackTrainer, "train_step", reads_a_value)
        with pytest.raises(NotCapturable):
            start()
