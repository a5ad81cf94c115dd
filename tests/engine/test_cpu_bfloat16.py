"""bfloat16 on a CPU: linear layers round their operands, all other values stay float32."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from plain_loop import plain_finetune
from stack_loop import run_steps, trial, without_dropout
from test_adapters import adapted
from tiny import FAMILIES, tiny_encoder, tiny_task
from torch import nn
from transformers.pytorch_utils import Conv1D

from whichlayers.engine.export_weights import encoder_weights
from whichlayers.engine.optimizer import FusedAdamW
from whichlayers.engine.settings import EngineSettings
from whichlayers.models.head import build_classifier
from whichlayers.trial import Surgery

# Adam scales gradients to steps of equal size; a large eps keeps differences of rounding as small as they are
ROUNDED = {"lr": 1e-3, "eps": 1e-3, "precision": "bfloat16"}


def autocast_linear_layers(model: nn.Module) -> nn.Module:
    """Compute the matrix product of every linear layer of a model under torch.autocast, the rest in float32."""
    for module in model.modules():
        if isinstance(module, nn.Linear | Conv1D):

            def forward(x, module=module):
                weight = module.weight.T if isinstance(module, Conv1D) else module.weight
                with torch.autocast("cpu", torch.bfloat16):
                    y = F.linear(x, weight).float()
                return y if module.bias is None else y + module.bias

            module.forward = forward
    return model


def as_float32(one):
    return dataclasses.replace(one, training=dataclasses.replace(one.training, precision="float32"))


def mixed_trials(head: str):
    return [trial(0, head, **ROUNDED), trial(1, head, surgery=Surgery(reinit=(2,)), **ROUNDED)]


# the projections of XLNet are no linear layers
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "xlnet"])
def test_a_stack_equals_linear_layers_under_autocast(family, packed):
    encoder, data, trials = tiny_encoder(family), tiny_task(), mixed_trials("mean")
    _, losses = run_steps(trials, encoder, data, 3, EngineSettings(packed=packed))
    _, float32 = run_steps([as_float32(one) for one in trials], encoder, data, 1)
    expected = [
        plain_finetune(
            one,
            without_dropout(encoder),
            data,
            max_steps=3,
            build=lambda *args: autocast_linear_layers(build_classifier(args[0], "mean", *args[1:])),
        )[1]
        for one in trials
    ]
    differences = (losses - torch.tensor(expected).mT).abs()
    # sums in another order can change how a value is rounded, and then all that follows
    assert differences.median() < 1e-6
    assert differences.max() < 2e-3
    assert (losses[0] - float32[0]).abs().max() > 5e-6, "operands were rounded"


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "xlnet"])
def test_a_trial_is_the_same_alone_and_in_a_stack(family):
    encoder, data, trials = tiny_encoder(family), tiny_task(), mixed_trials("mean")
    trainer, together = run_steps(trials, encoder, data, 5)
    assert isinstance(trainer.optimizer, FusedAdamW)
    assert {p.param.dtype for p in trainer.parameters} == {torch.float32}
    for t, one in enumerate(trials):
        _, alone = run_steps([one], encoder, data, 5)
        torch.testing.assert_close(together[:, t], alone[:, 0], rtol=0, atol=2e-3)
        assert (together[:, t] - alone[:, 0]).abs().median() < 1e-6


def test_frozen_weights_are_rounded_in_products_only():
    """Shared frozen weights are kept in bfloat16 while training, and are not among the saved ones."""
    encoder, data = tiny_encoder("bert"), tiny_task()
    trials = [trial(seed, lr_factors=((0, 0.0), (1, 0.0), (2, 0.0)), **ROUNDED) for seed in range(2)]
    trainer, losses = run_steps(trials, encoder, data, 5)
    weight = trainer.model.module.encoder.encoder.layer[0].output.dense.weight
    assert (weight.dim(), weight.dtype) == (2, torch.bfloat16)
    _, float32 = run_steps([as_float32(one) for one in trials], encoder, data, 5)
    torch.testing.assert_close(losses, float32, rtol=0, atol=2e-3)
    assert not torch.equal(losses, float32)
    saved = encoder_weights(trainer, 0)
    assert "encoder.layer.0.output.dense.weight" not in saved, "it keeps its pretrained values"
    assert saved["encoder.layer.2.output.dense.weight"].dtype == torch.float32


def test_adapters_train_in_float32_on_a_rounded_base():
    encoder, data = tiny_encoder("bert"), tiny_task()
    trials = [
        dataclasses.replace(one, training=dataclasses.replace(one.training, **ROUNDED))
        for one in (adapted(0), adapted(1))
    ]
    trainer, losses = run_steps(trials, encoder, data, 10)
    _, float32 = run_steps([as_float32(one) for one in trials], encoder, data, 10)
    adapters = [p.param for p in trainer.parameters if "lora" in p.name]
    assert adapters
    assert {p.dtype for p in adapters} == {torch.float32}
    torch.testing.assert_close(losses, float32, rtol=0, atol=2e-3)
    assert not torch.equal(losses, float32)
