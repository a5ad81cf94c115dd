"""Steps of a stack on the CPU, and their comparison with the plain loop."""

from __future__ import annotations

import copy
import dataclasses

import torch
from plain_loop import plain_finetune
from torch import nn

from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.trial import Surgery, Training, Trial

# Attention is invariant to a shift of all keys: the exact gradient of the key bias is 0, and Adam with its default eps
# of 1e-8 would amplify the rounding noise to full steps. An eps above the noise makes weights comparable.
RECIPE = Training(epochs=3, batch_size=8, lr=3e-3, clip_norm=1.0, dropout=0.0, eps=1e-6)


def trial(seed: int = 0, head: str = "mean", surgery: Surgery | None = None, **training) -> Trial:
    return Trial(
        "tiny", "m", "tiny", "t", 52, seed, head=head, surgery=surgery or Surgery(),
        training=dataclasses.replace(RECIPE, **training),
    )  # fmt: skip


def without_dropout(encoder):
    """A copy with dropout 0 in the modules and in the config, which some attention code reads."""
    plain = copy.deepcopy(encoder)
    for key in vars(plain.config):
        if "drop" in key and isinstance(getattr(plain.config, key), float):
            setattr(plain.config, key, 0.0)
    for m in plain.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
        for key in ("attention_dropout", "dropout"):
            if isinstance(getattr(m, key, None), float):
                setattr(m, key, 0.0)
    return plain


def run_steps(trials, encoder, data, steps, settings=None):
    trainer = StackTrainer(trials, encoder, data, torch.device("cpu"), settings or EngineSettings())
    trainer.model.train()
    losses = []
    for step in range(steps):
        before = trainer.loss_sum.clone()
        trainer.step_runner(step)
        losses.append((trainer.loss_sum - before).tolist())
    return trainer, torch.tensor(losses)  # (steps, T)


def assert_equals_plain_loop(trials, encoder, data) -> StackTrainer:
    """Losses and weights of all trials are those of the plain loop after 20 steps; returns the stack."""
    trainer, losses = run_steps(trials, encoder, data, 20)
    for t, one in enumerate(trials):
        model, expected = plain_finetune(one, without_dropout(encoder), data, max_steps=20)
        torch.testing.assert_close(losses[:, t], torch.tensor(expected), rtol=0, atol=1e-4)
        for name, p in model.named_parameters():
            found = trainer.model.trial_parameter(name, t)
            torch.testing.assert_close(
                found, p, rtol=0, atol=1e-4, msg=lambda m, n=name, t=t: f"{t} {n}: {m}"
            )
    return trainer
