"""A training step stays on its device, as CUDA graphs require: shown without a GPU, with tensors on the meta device.

Operations on meta tensors compute nothing, but they know their device. A step must not read a value on the host
(`item`, `nonzero`), must not copy between devices and must not create tensors on the CPU: that cannot be captured.
"""

import pytest
import torch
from tiny import DECODERS, random_batch, tiny_encoder
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from whichlayers.engine.recompute import recompute_layers
from whichlayers.engine.stacking import stack_models
from whichlayers.engine.varlen import pack_layers
from whichlayers.models.head import build_classifier

READS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "equal.default")


class OffDevice(TorchDispatchMode):
    """Records the operations that cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        self.count += 1
        devices = {t.device.type for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)}
        if devices - {"meta"} or any(read in str(op) for read in READS):
            self.found.append(f"{op} on {', '.join(sorted(devices))}")
        return result


def operations_of_a_step(family: str, packed: bool, recompute: bool) -> OffDevice:
    """Those of a forward and a backward pass of two trials with dropout."""
    models = [build_classifier(tiny_encoder(family, i, dropout=0.2), "last", 3, seed=i) for i in range(2)]
    stacked = stack_models(models)
    assert pack_layers(stacked)
    if recompute:
        recompute_layers(stacked)
    for module in stacked.modules():
        for name, p in module._parameters.items():
            if p is not None:
                module._parameters[name] = nn.Parameter(p.detach().to("meta"), p.requires_grad)
        for name, buffer in module._buffers.items():
            module._buffers[name] = buffer if buffer is None else buffer.to("meta")
    batch = {name: values.to("meta") for name, values in random_batch(12, 13, types=False).items()}
    keys, step = (torch.zeros(n, dtype=torch.int32, device="meta") for n in (2, ()))
    stacked.train().context.packed_tokens = 80 if packed else None
    if not packed:  # otherwise, batches that are not on a GPU are packed by reading their masks
        stacked._forward_pre_hooks.clear()
    with OffDevice() as operations:
        stacked.set_dropout_keys(keys, step, 6)
        stacked(**batch).square().sum().backward()
    assert all(p.grad is not None for p in stacked.parameters() if p.requires_grad)
    return operations


CASES = [(family, True, True) for family in DECODERS]
CASES += [(family, False, False) for family in ("llama", "gemma3_text", "gpt2")]


@pytest.mark.parametrize(("family", "packed", "recompute"), CASES)
def test_a_step_of_a_decoder_stays_on_its_device(family, packed, recompute):
    operations = operations_of_a_step(family, packed, recompute)
    assert operations.count > 500
    assert not operations.found


@pytest.mark.parametrize(
    "leave",
    [lambda x: x + torch.ones(1).sum(), lambda x: x[torch.arange(len(x))], lambda x: x * x.sum().item()],
)
def test_an_operation_that_leaves_the_device_is_noticed(leave, monkeypatch):
    plain = nn.functional.silu
    monkeypatch.setattr(nn.functional, "silu", lambda x, *args, **kwargs: leave(plain(x)))
    try:
        found = operations_of_a_step("llama", packed=True, recompute=False).found
    except RuntimeError as error:  # meta tensors have no values
        found = [str(error)]
    assert found
