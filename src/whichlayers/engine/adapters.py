"""LoRA and IA3 adapters of a stack: each trial has its own, on a base that all trials share.

An adapter is attached to a linear module of the stacked model, of any type, and changes its output. The module itself
is frozen: if it has the same weights in all trials, one matrix product serves the rows of all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.freezing import ADAPTER
from whichlayers.engine.stacked_modules import StackContext, batched_linear
from whichlayers.engine.stacking import StackedModel
from whichlayers.errors import WhichlayersError
from whichlayers.models.structure import ModelStructure, linear_size
from whichlayers.trial import Adapter, Trial

FIRST_DROPOUT_ID = 1 << 20  # above the numbers of the model's own dropout modules


class LoraAdapter(nn.Module):
    """Adds alpha / rank * B A x to the output of a linear module: lora_a (T, rank, in), lora_b (T, out, rank)."""

    def __init__(self, size: tuple[int, int], adapter: Adapter, context: StackContext, dropout_id: int):
        super().__init__()
        self.context, self.shared_names = context, frozenset[str]()
        (inputs, outputs), trials = size, context.trials
        self.lora_a = nn.Parameter(torch.zeros(trials, adapter.rank, inputs))
        self.lora_b = nn.Parameter(torch.zeros(trials, outputs, adapter.rank))
        self.scale = adapter.alpha / adapter.rank
        self.dropout = StackedDropout(adapter.dropout, dropout_id, context)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Input x and output y of the module, (..., in) and (..., out) -> the new output."""
        narrow = batched_linear(self.dropout(x), self.lora_a, None, self.context)
        return y + batched_linear(narrow * self.scale, self.lora_b, None, self.context)

    def weight_change(self, values: dict[str, Tensor], start: Tensor) -> Tensor:
        """(T, out, in) change of the module's weight that has the effect of the adapter.

        Args:
            values: Parameters of the adapter by name, float32.
            start: (T, out, in) or (1, out, in) weight of the module.
        """
        return self.scale * torch.bmm(values["lora_b"], values["lora_a"])


class Ia3Adapter(nn.Module):
    """Multiplies the output of a linear module by a vector: ia3 (T, out), which starts at 1."""

    def __init__(self, size: tuple[int, int], context: StackContext):
        super().__init__()
        self.context, self.shared_names = context, frozenset[str]()
        self.ia3 = nn.Parameter(torch.ones(context.trials, size[1]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Output y (..., out) of the module -> the new output; the input x is not used."""
        return self.context.multiply_per_trial(y, self.ia3)

    def weight_change(self, values: dict[str, Tensor], start: Tensor) -> Tensor:
        """(T, out, in) change of the module's weight that has the effect of the adapter; see `LoraAdapter`."""
        return (values["ia3"] - 1)[:, :, None] * start


def attach_adapters(model: StackedModel, encoder: nn.Module, trials: Sequence[Trial]) -> None:
    """Attach the adapters of the trials, which must be the same in all of them, to a stacked model, in place.

    Args:
        model: The stacked model; its encoder is at `module.encoder`.
        encoder: The plain encoder of the same architecture.
        trials: The trials of the stack.
    """
    adapter = trials[0].adapter
    if adapter is None:
        return
    device, dtype = next((p.device, p.dtype) for p in encoder.parameters())
    names = adapted_modules(ModelStructure(encoder), adapter)  # type: ignore[arg-type]
    for number, name in enumerate(names):
        size = linear_size(encoder.get_submodule(name))
        assert size is not None
        new: LoraAdapter | Ia3Adapter
        if adapter.method == "lora":
            new = LoraAdapter(size, adapter, model.context, FIRST_DROPOUT_ID + number)
        else:
            new = Ia3Adapter(size, model.context)
        module = model.module.get_submodule(f"encoder.{name}")
        setattr(module, ADAPTER, new.to(device=device, dtype=dtype))
        module.__class__ = _adapted_class(type(module))  # type: ignore[arg-type]


@functools.cache
def _adapted_class(base: type[nn.Module]) -> type[nn.Module]:
    """A subclass of a linear module's class that passes its output through its adapter.

    All adapted modules of a type share one class, so that torch.compile compiles one layer for all of them.
    """

    class Adapted(base):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor) -> Tensor:
            return self.adapter(x, super().forward(x))

    Adapted.__name__ = base.__name__
    return Adapted


def adapted_modules(structure: ModelStructure, adapter: Adapter) -> list[str]:
    """Names of the modules of an encoder that an adapter changes, in order.

    Raises:
        WhichlayersError: A layer or a target does not exist, or the rank exceeds the width of a target.
    """
    known, found = structure.linear_modules(), list[str]()
    for target in adapter.targets:
        if target not in known:
            raise WhichlayersError(
                f"there is no linear module {target} in the layers; there are: {', '.join(known)}"
            )
        if adapter.method == "lora" and adapter.rank > min(known[target]):
            raise WhichlayersError(
                f"rank {adapter.rank} exceeds the width of {target}, {min(known[target])}: use at most that"
            )
    for layer in adapter.layers:
        prefix = structure.layer_prefix(layer)
        modules = {name for name, _ in structure.layers[layer - 1].named_modules()}
        found += [prefix + target for target in adapter.targets if target in modules]
    return found


def adapter_deltas(trainer: Any, name: str, start: Tensor, part: slice = slice(None)) -> Tensor | None:
    """(n, ...) change of a weight or bias of n trials that has the effect of its adapter; None if it has none.

    Args:
        trainer: The `StackTrainer`.
        name: Name of the parameter in the stacked model.
        start: (n, ...) or (1, ...) values of the parameter.
        part: The trials.
    """
    owner_name, _, attribute = name.rpartition(".")
    module = trainer.model.module.get_submodule(owner_name)
    adapter = getattr(module, ADAPTER, None)
    if not isinstance(adapter, LoraAdapter | Ia3Adapter) or (
        attribute == "bias" and isinstance(adapter, LoraAdapter)
    ):
        return None
    indices = {p.name: i for i, p in enumerate(trainer.parameters)}
    values = {
        own: trainer.optimizer.values(indices[f"{owner_name}.{ADAPTER}.{own}"])[part].float()
        for own, _ in adapter.named_parameters()
    }
    if attribute == "bias":
        return (values["ia3"] - 1) * start
    if type(module).__name__.endswith("Conv1D"):  # its weight is (in, out)
        return adapter.weight_change(values, start.mT).mT
    return adapter.weight_change(values, start)
