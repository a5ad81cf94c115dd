"""The GPU path against the CPU path: compiled layers, captured steps, bfloat16 compute, the attention kernel."""

import dataclasses

import pytest
import torch
import transformers as tf
from tiny import tiny_encoder, tiny_task

from carryover.engine.finetune import finetune
from carryover.engine.outcome import EngineSettings
from carryover.engine.stack_run import StackRun
from carryover.trial import Surgery, Training, Trial

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

TRAINING = Training(epochs=8, batch_size=8, lr=1e-3, dropout=0.0, eps=1e-6)


def trials(dropout: float = 0.0) -> list[Trial]:
    training = dataclasses.replace(TRAINING, dropout=dropout)
    surgeries = [(), (2, 3), (3,), (1, 2, 3)]
    return [
        Trial("m", "m", "t", "t", 52, seed, surgery=Surgery(reinit=r), training=training)
        for seed, r in enumerate(surgeries)
    ]


def encoder():
    """Heads of 32 channels, which the attention kernel takes."""
    torch.manual_seed(0)
    config = tf.BertConfig(
        vocab_size=120, hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=66,
    )  # fmt: skip
    return tf.BertModel(config, add_pooling_layer=False).eval()


def losses(stack, model, device: str, steps: int, **settings) -> torch.Tensor:
    run = StackRun(stack, model.to(device), tiny_task(), torch.device(device), EngineSettings(**settings))
    run.stack.train()
    found = []
    for step in range(steps):
        before = run.loss_sum.clone()
        run.runner(step)
        found.append((run.loss_sum - before).cpu())
    return torch.stack(found)  # (steps, T)


@pytest.mark.parametrize("family", ["bert", "mpnet", "xlnet", "modernbert", "deberta-v2"])
def test_float32_on_the_gpu_equals_the_cpu(family):
    cpu = losses(trials(), tiny_encoder(family), "cpu", 20)
    gpu = losses(
        trials(), tiny_encoder(family), "cuda", 20, precision="float32", compiled=False, graphs=False
    )
    torch.testing.assert_close(gpu, cpu, rtol=0, atol=2e-3)


def test_captured_bfloat16_steps_follow_float32():
    cpu = losses(trials(), encoder(), "cpu", 40)
    gpu = losses(trials(), encoder(), "cuda", 40)
    assert (gpu - cpu).abs().mean() < 0.02
    assert gpu[-8:].mean() < gpu[:8].mean(), "it learns"


def test_a_trial_is_the_same_in_any_captured_stack():
    stack = trials(dropout=0.2)
    together = losses(stack, encoder(), "cuda", 30)
    again = losses(stack, encoder(), "cuda", 30)
    assert torch.equal(together, again), "the same stack gives the same bits"
    alone = losses([stack[2]], encoder(), "cuda", 30)
    assert (alone[:, 0] - together[:, 2]).abs().mean() < 0.02


def test_a_whole_finetuning_run_gives_the_cpus_metrics():
    on_gpu = finetune(trials(), encoder(), tiny_task(), device="cuda")
    on_cpu = finetune(trials(), encoder(), tiny_task(), device="cpu")
    for a, b in zip(on_gpu, on_cpu, strict=True):
        assert a.error is None
        assert a.epochs[-1].dev_loss == pytest.approx(b.epochs[-1].dev_loss, abs=0.15)
        assert a.epochs[-1].train_loss == pytest.approx(b.epochs[-1].train_loss, abs=0.1)
