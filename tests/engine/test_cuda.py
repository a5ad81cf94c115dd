"""Results on the GPU against those on the CPU: compiled layers, CUDA graphs, bfloat16, the attention kernel."""

import dataclasses

import pytest
import torch
import transformers as tf
from tiny import FAMILIES, tiny_encoder, tiny_task

from whichlayers.engine import checkpoint
from whichlayers.engine.finetune import finetune
from whichlayers.engine.memory import measure_memory
from whichlayers.engine.out_of_memory import is_out_of_memory, release_memory
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.trial import Surgery, Training, Trial

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
    """An encoder with heads of size 32, which the attention kernel supports."""
    torch.manual_seed(0)
    config = tf.BertConfig(
        vocab_size=120, hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=66,
    )  # fmt: skip
    return tf.BertModel(config, add_pooling_layer=False).eval()


def losses(stack, model, device: str, steps: int, **settings) -> torch.Tensor:
    settings = {"compiled": device == "cuda"} | settings  # by default, so small a stack would not be compiled
    trainer = StackTrainer(
        stack, model.to(device), tiny_task(), torch.device(device), EngineSettings(**settings)
    )
    trainer.model.train()
    found = []
    for step in range(steps):
        before = trainer.loss_sum.clone()
        trainer.step_runner(step)
        found.append((trainer.loss_sum - before).cpu())
    return torch.stack(found)  # (steps, T)


def weight_changes(stack, model, device: str, steps: int) -> dict[str, torch.Tensor]:
    """(T,) norm of the change of every trained matrix."""
    settings = EngineSettings(compiled=device == "cuda")
    trainer = StackTrainer(stack, model.to(device), tiny_task(), torch.device(device), settings)
    before = [trainer.optimizer.values(i).clone() for i in range(len(trainer.parameters))]
    for step in range(steps):
        trainer.step_runner(step)
    return {
        p.name: (trainer.optimizer.values(i) - before[i]).flatten(1).norm(dim=1).cpu()
        for i, p in enumerate(trainer.parameters)
        if p.param.requires_grad and p.param.dim() == 3
    }


def assert_weights_change_alike(stack, model_of) -> None:
    """Captured steps change every matrix about as much as the CPU does: no gradient is lost."""
    cpu, gpu = (weight_changes(stack, model_of(), device, 8) for device in ("cpu", "cuda"))
    assert cpu.keys() == gpu.keys()
    for name, expected in cpu.items():
        assert torch.allclose(gpu[name], expected, rtol=0.3, atol=1e-4), name


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


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_steps_change_all_weights(family):
    assert_weights_change_alike(trials(), lambda: tiny_encoder(family))


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "bert"])
def test_every_family_is_compiled_and_captured_and_follows_float32(family, caplog):
    cpu = losses(trials(), tiny_encoder(family), "cpu", 30)
    gpu = losses(trials(), tiny_encoder(family), "cuda", 30)
    assert (gpu - cpu).abs().mean() < 0.04
    assert "cannot be captured" not in caplog.text


def test_activation_checkpointing_is_captured_and_changes_little(caplog):
    kept = losses(trials(), tiny_encoder("llama"), "cuda", 20)
    recomputed = losses(trials(), tiny_encoder("llama"), "cuda", 20, recompute=True)
    assert (recomputed - kept).abs().mean() < 0.02
    assert "cannot be captured" not in caplog.text


def test_a_stack_takes_no_more_memory_than_measured_and_not_far_less():
    config = tf.BertConfig(vocab_size=120, hidden_size=512, num_hidden_layers=4, num_attention_heads=8,
                           intermediate_size=2048, max_position_embeddings=66)  # fmt: skip
    model, data = tf.BertModel(config, add_pooling_layer=False).cuda().eval(), tiny_task()
    stack = [dataclasses.replace(trials()[0], seed=seed) for seed in range(8)]
    expected = measure_memory(stack, model, data, "cuda").total(len(stack))
    release_memory()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    assert all(result.error is None for result in finetune(stack, model, data, device="cuda"))
    taken = torch.cuda.max_memory_reserved() - before
    assert (
        0.4 * expected < taken < 1.1 * expected + 512e6
    )  # torch reserves whole segments, whatever the model's size


def test_running_out_of_memory_is_recognized_and_a_smaller_stack_still_fits():
    release_memory()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 900e6) / total)
    config = tf.BertConfig(vocab_size=120, hidden_size=512, num_hidden_layers=4, num_attention_heads=8,
                           intermediate_size=2048, max_position_embeddings=66)  # fmt: skip
    model, data = tf.BertModel(config, add_pooling_layer=False).cuda().eval(), tiny_task()
    stack = [dataclasses.replace(trials()[0], seed=seed) for seed in range(16)]
    try:
        with pytest.raises(RuntimeError) as caught:  # 16 trials have weights and moments of 2 GB
            finetune(stack, model, data, device="cuda")
        assert is_out_of_memory(caught.value)
        del caught
        release_memory()
        [result] = finetune(stack[:1], model, data, device="cuda")
        assert result.error is None
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_captured_stack_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_TIME_FRACTION", float("inf"))
    uninterrupted = finetune(trials(dropout=0.1), encoder(), tiny_task(), device="cuda")
    settings = EngineSettings(checkpoint_folder=tmp_path, checkpoint_seconds=0)
    steps = []

    def on_step(more: int) -> None:
        steps.append(more)
        if len(steps) == 17:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(
            trials(dropout=0.1), encoder(), tiny_task(), device="cuda", settings=settings, on_step=on_step
        )
    resumed = finetune(
        trials(dropout=0.1), encoder(), tiny_task(), device="cuda", settings=settings, on_step=steps.append
    )
    assert len(steps) < 17 + trials()[0].steps, "it did not restart from the beginning"
    for a, b in zip(resumed, uninterrupted, strict=True):
        assert [r.train_loss for r in a.epochs] == pytest.approx([r.train_loss for r in b.epochs], abs=2e-2)
        assert a.epochs[-1].dev_loss == pytest.approx(b.epochs[-1].dev_loss, abs=5e-2)


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
