"""Decoders on a GPU: packed causal attention against the CPU, compiled and captured steps of every family."""

import dataclasses

import pytest
import torch
from test_cuda import losses
from tiny import DECODERS, tiny_encoder
from torch._dynamo.utils import counters

from whichlayers.engine.cuda_graphs import StepRunner
from whichlayers.models.families import layers_differ
from whichlayers.trial import Surgery, Training, Trial

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = "cuda"
TRAINING = Training(epochs=8, batch_size=8, lr=1e-3, dropout=0.1, eps=1e-6)
MIXED_FAMILIES = ["qwen2", "gemma2", "gemma3_text", "smollm3"]  # with layers of different kinds


def trials(order: tuple[int, ...] | None = None) -> list[Trial]:
    """Three trials with dropout; `order`: that of their layers."""
    surgeries = [Surgery(order), Surgery(order, reinit=(2, 3)), Surgery(order, (1,), "model_init")]
    return [
        Trial("m", "m", "t", "t", 52, seed, head="last", surgery=surgery, training=TRAINING)
        for seed, surgery in enumerate(surgeries)
    ]


@pytest.fixture
def runners(monkeypatch) -> list[StepRunner]:
    """The step runners that a test creates."""
    found: list[StepRunner] = []
    start = StepRunner.__init__

    def record(self, *args, **kwargs):
        start(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(StepRunner, "__init__", record)
    return found


def assert_captured(runner: StepRunner) -> None:
    """All sizes of steps that ran more than twice were captured."""
    assert runner.graphs, "the steps run eagerly"
    assert any(step.graph is not None for step in runner.graphs.values())
    assert not any(step.capture_failed for step in runner.graphs.values())


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("family", DECODERS)
def test_float32_on_the_gpu_equals_the_cpu(family, packed):
    """With dropout: the kernel draws the masks of the CPU."""
    cpu = losses(trials(), tiny_encoder(family), "cpu", 20)
    settings = {"precision": "float32", "compiled": False, "graphs": False, "packed": packed}
    gpu = losses(trials(), tiny_encoder(family), DEVICE, 20, **settings)
    torch.testing.assert_close(gpu, cpu, rtol=0, atol=2e-3)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", DECODERS)
def test_steps_are_compiled_and_captured(family, recompute, runners, caplog):
    """Also with activation checkpointing, whose backward pass runs compiled layers again."""
    cpu = losses(trials(), tiny_encoder(family), "cpu", 30)
    torch._dynamo.reset()
    counters.clear()
    gpu = losses(trials(), tiny_encoder(family), DEVICE, 30, compiled=True, recompute=recompute)
    assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    # the lookup of word embeddings is meant to break the graph
    assert not [reason for reason in counters["graph_break"] if "_lookup" not in reason]
    assert_captured(runners[-1])
    assert "cannot be captured" not in caplog.text
    assert (gpu - cpu).abs().mean() < 0.04


@pytest.mark.parametrize("family", MIXED_FAMILIES)
def test_moved_layers_of_different_kinds(family, runners):
    assert layers_differ(tiny_encoder(family).config)
    cpu = losses(trials((2, 3, 1)), tiny_encoder(family), "cpu", 20)
    gpu = losses(trials((2, 3, 1)), tiny_encoder(family), DEVICE, 20, compiled=True)
    assert_captured(runners[-1])
    assert (gpu - cpu).abs().mean() < 0.04


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "opt"])
def test_a_decoder_is_the_same_in_any_captured_stack(family):
    stack = trials()
    together = losses(stack, tiny_encoder(family), DEVICE, 20, compiled=True)
    alone = losses(stack[1:2], tiny_encoder(family), DEVICE, 20, compiled=True)
    assert (alone[:, 0] - together[:, 1]).abs().mean() < 0.02
    other_head = [dataclasses.replace(trial, head="mean") for trial in stack]
    mean = losses(other_head, tiny_encoder(family), DEVICE, 5, compiled=True)
    assert (mean - together[:5]).abs().max() > 1e-3, "the head has an effect"
