"""Frozen layers and adapters on the GPU against the CPU: eager float32, and bfloat16 with CUDA graphs."""

import dataclasses

import pytest
import torch
from test_cuda import assert_weights_change_alike, encoder, losses
from tiny import tiny_task

from whichlayers.engine.finetune import finetune
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.trial import Adapter, Training, Trial

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

TRAINING = Training(epochs=8, batch_size=8, lr=1e-3, dropout=0.0, eps=1e-6)
TARGETS = ("attention.self.query", "attention.self.value", "output.dense")
FROZEN = tuple((layer, 0.0) for layer in (0, 1, 2))
SETTINGS = {
    "top layer": {"training": dataclasses.replace(TRAINING, lr_factors=FROZEN)},
    "biases": {"training": dataclasses.replace(TRAINING, parameters="biases")},
    "lora": {"training": TRAINING, "adapter": Adapter("lora", (2, 3), TARGETS, rank=4)},
    "ia3": {"training": TRAINING, "adapter": Adapter("ia3", (1, 2, 3), TARGETS)},
}


def stack(setting: str) -> list[Trial]:
    return [Trial("m", "m", "t", "t", 52, seed, **SETTINGS[setting]) for seed in range(3)]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("packed", [True, False])
def test_float32_on_the_gpu_equals_the_cpu(setting, packed):
    cpu = losses(stack(setting), encoder(), "cpu", 20)
    eager = {"precision": "float32", "compiled": False, "graphs": False, "packed": packed}
    torch.testing.assert_close(losses(stack(setting), encoder(), "cuda", 20, **eager), cpu, rtol=0, atol=1e-3)


@pytest.mark.parametrize("setting", SETTINGS)
def test_compiled_layers_and_cuda_graphs_stay_close(setting):
    cpu = losses(stack(setting), encoder(), "cpu", 30)
    gpu = losses(stack(setting), encoder(), "cuda", 30)
    torch.testing.assert_close(gpu, cpu, rtol=0, atol=0.05)


@pytest.mark.parametrize("setting", ["top layer", "lora"])
def test_captured_steps_change_all_trained_weights(setting):
    assert_weights_change_alike(stack(setting), encoder)


def test_a_cached_prefix_with_cuda_graphs():
    training = dataclasses.replace(TRAINING, lr_factors=FROZEN, dropout=0.2, frozen_dropout=False)
    trials = [Trial("m", "m", "t", "t", 52, seed, training=training) for seed in range(3)]
    found = [losses(trials, encoder(), "cuda", 30, cache_prefix=cache) for cache in (True, False)]
    torch.testing.assert_close(*found, rtol=0, atol=0.02)


def test_frozen_weights_are_kept_once_and_memory_is_a_result():
    trainer = StackTrainer(
        stack("lora"), encoder().cuda(), tiny_task(), torch.device("cuda"), EngineSettings()
    )
    dense = trainer.model.module.encoder.encoder.layer[0].intermediate.dense.weight
    assert (dense.dim(), dense.dtype, dense.requires_grad) == (2, torch.bfloat16, False)
    index = next(i for i, p in enumerate(trainer.parameters) if p.name.endswith("lora_a"))
    assert trainer.optimizer.values(index).dtype == trainer.optimizer.m[index].dtype == torch.float32
    del trainer
    results = finetune(stack("lora"), encoder(), tiny_task(), device="cuda")
    assert all(result.error is None and result.memory > 0 for result in results)
