"""Stacks on a fake CUDA device: training steps can be captured as CUDA graphs, evaluation and export run.

Nothing is computed. What these tests notice: a tensor that was left on the CPU, a value that a step reads on the host,
dtypes and shapes that do not fit, memory layouts that the Triton kernels cannot read. See tests/helpers/fake_cuda.py.
"""

import dataclasses

import numpy as np
import pytest
import torch
from fake_cuda import DEVICE, NotCapturable, fake_cuda
from tiny import DECODERS, FAMILIES, tiny_encoder, tiny_task

from whichlayers.engine import memory, optimizer
from whichlayers.engine.export_weights import encoder_weights
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.engine.step_sizes import plan_sizes
from whichlayers.engine.weight_change import weight_changes
from whichlayers.models.structure import ModelStructure
from whichlayers.trial import Adapter, Surgery, Training, Trial

TRAINING = Training(epochs=2, batch_size=8, dropout=0.1)
NOT_PACKED = ("xlnet",)
FROZEN = dataclasses.replace(TRAINING, lr_factors=((0, 0.0), (1, 0.0), (2, 0.0)))


def build(family: str, packed: bool, kind: str = "classification", recompute: bool = False, **trial):
    """A stack of two trials; packed ones in bfloat16, padded ones in float32."""
    settings = {"head": "last" if family in DECODERS else "mean", "training": TRAINING} | trial
    trials = [Trial("m", "m", "t", "t", 52, seed, **settings) for seed in range(2)]
    engine = EngineSettings(
        precision="bfloat16" if packed else "float32",
        packed=packed,
        recompute=recompute,
        compiled=False,
        graphs=False,
    )
    return StackTrainer(trials, tiny_encoder(family), tiny_task(kind=kind), DEVICE, engine)


def capture_step(cuda, trainer: StackTrainer) -> int:
    """Run a step, then the same step as it is captured; returns its number of operations."""
    size = 112 if trainer.size_in_tokens else 16
    trainer.train_step(size)  # fills the caches of position encodings
    with cuda.captured() as capture:
        trainer.train_step(size)
    return capture.operations


CASES = [(family, True) for family in FAMILIES if family not in NOT_PACKED]
CASES += [
    (family, False)
    for family in (*NOT_PACKED, "bert", "mpnet", "deberta-v2", "modernbert", "gemma3_text", "opt")
]


@pytest.mark.parametrize(("family", "packed"), CASES)
def test_a_step_of_every_family_can_be_captured(family, packed, monkeypatch):
    with fake_cuda(monkeypatch) as cuda:
        trainer = build(family, packed, recompute=family in DECODERS)
        assert trainer.packed == packed
        assert capture_step(cuda, trainer) > 500
        trainer.evaluate()


def targets(family: str) -> tuple[str, ...]:
    """Three linear modules of a layer."""
    return tuple(ModelStructure(tiny_encoder(family)).linear_modules())[:3]


SETTINGS = {
    "frozen layers": lambda family: {"training": FROZEN},
    "cached prefix": lambda family: {"training": dataclasses.replace(FROZEN, frozen_dropout=False)},
    "biases": lambda family: {"training": dataclasses.replace(TRAINING, parameters="biases")},
    "lora": lambda family: {
        "adapter": Adapter("lora", (2, 3), targets(family), rank=4, dropout=0.1),
        "recompute": True,
    },
    "ia3": lambda family: {"adapter": Adapter("ia3", (1, 3), targets(family))},
    "optimizer": lambda family: {
        "training": dataclasses.replace(
            TRAINING, weight_decay=0.1, warmup=0.1, schedule="constant", bias_correction=False, clip_norm=0.0
        )
    },
    "regression": lambda family: {"kind": "regression", "head": "mean", "recompute": True},
    "surgery": lambda family: {"surgery": Surgery((3, 1), reinit=(2,), recipe="shuffled")},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("family", "packed"), [("bert", True), ("gpt2", False)])
def test_a_step_of_every_setting_can_be_captured(family, packed, setting, monkeypatch):
    with fake_cuda(monkeypatch) as cuda:
        trainer = build(family, packed, **SETTINGS[setting](family))
        assert (trainer.prefix_cache is not None) == (setting == "cached prefix")
        assert capture_step(cuda, trainer) > 300
        trainer.evaluate()
        weight_changes(trainer)
        assert all(not w.is_cuda for w in encoder_weights(trainer, 1, with_head=True).values())


def test_the_device_becomes_the_current_one(monkeypatch):
    with fake_cuda(monkeypatch):
        selected = []
        monkeypatch.setattr(torch.cuda, "set_device", selected.append)
        build("bert", packed=True)
        assert selected == [DEVICE]


def test_sequences_are_not_padded_beyond_the_positions_of_the_model(monkeypatch):
    encoder = tiny_encoder("bert")
    encoder.config.max_position_embeddings = 13
    data = tiny_task(kind="classification")
    longest = int(np.diff(data.train.offsets).max())
    assert longest <= 13 < 16
    trials = [Trial("m", "m", "t", "t", 52, seed, head="mean", training=TRAINING) for seed in range(2)]
    with fake_cuda(monkeypatch):
        settings = EngineSettings(packed=False, compiled=False, graphs=False)
        trainer = StackTrainer(trials, encoder, data, DEVICE, settings)
        sizes, _ = plan_sizes(trainer.train_loader, 2, 1000, False, False, 1)
        assert trainer.train_loader.width == 13
        assert sizes.max() == 13
        assert memory._largest_step(trainer, data) == 13
        trainer.train_step(13)


def test_the_measured_step_has_room_for_batches_larger_than_the_training_set(monkeypatch):
    data = tiny_task(kind="classification")
    for seed in range(20):
        training = Training(epochs=1, batch_size=32)
        trials = [Trial("m", "m", "t", "t", 4, seed, head="mean", training=training)]
        with fake_cuda(monkeypatch):
            settings = EngineSettings(precision="bfloat16", compiled=False, graphs=False)
            trainer = StackTrainer(trials, tiny_encoder("bert"), data, DEVICE, settings)
            most = trainer.train_loader.step_tokens.max()
            assert memory._largest_step(trainer, data) >= most


def read_value(grads, step):
    return [None if g is None else g * float(step) for g in grads]


def use_cpu_tensor(grads, step):
    return [None if g is None else g + torch.ones(g.shape) for g in grads]


def copy_from_cpu(grads, step):
    return [None if g is None else g * torch.tensor(0.5, device=g.device) for g in grads]


def index_by_mask(grads, step):
    return [None if g is None else g.clone()[g > 0] for g in grads]


@pytest.mark.parametrize("mistake", [read_value, use_cpu_tensor, copy_from_cpu, index_by_mask])
def test_what_cannot_be_captured_is_noticed(mistake, monkeypatch):
    update = optimizer.FlatAdamW.step
    with fake_cuda(monkeypatch) as cuda:
        trainer = build("bert", packed=True)
        capture_step(cuda, trainer)

        def step(self, grads, number):
            mistake(grads, number)
            update(self, grads, number)

        monkeypatch.setattr(optimizer.FlatAdamW, "step", step)
        with pytest.raises((NotCapturable, RuntimeError)):
            capture_step(cuda, trainer)


def test_a_gradient_that_the_kernel_cannot_read_is_noticed(monkeypatch):
    with fake_cuda(monkeypatch):
        trainer = build("bert", packed=True)
        grad = torch.zeros(64, 2, dtype=torch.bfloat16, device=DEVICE).t()
        with pytest.raises(AssertionError):
            trainer.optimizer.sum_of_squares(grad)
