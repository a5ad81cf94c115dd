"""A CUDA device without a GPU: tensors on the meta device that say they are on "cuda".

They have shapes, strides and dtypes, but no values: code for a GPU can be run on any machine, except the kernels
themselves. While a stack is built or evaluated, values may be read on the host: they are all 0 or True, or 1 if `int`
is called. Within `captured()`, as in the capture of a CUDA graph, reading a value on the host or using a CPU tensor is
an error.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.fx.experimental._config
import torch.utils.checkpoint
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from whichlayers.engine import attention, optimizer, prefix_cache

DEVICE = torch.device("cuda:0")
READS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "aten.equal.default")
# of a tensor on the fake device
ATTRIBUTES = (
    (Tensor.device.__get__, DEVICE),
    (Tensor.is_cuda.__get__, True),
    (Tensor.is_meta.__get__, False),
)


class NotCapturable(AssertionError):
    """An operation that a CUDA graph cannot capture."""


class FakeCuda(TorchFunctionMode):
    """While active, the device "cuda" is the meta device, whose tensors say that they are on "cuda"."""

    def __init__(self) -> None:
        super().__init__()
        self.capturing = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if first is not None and first.is_meta:
            for attribute, value in ATTRIBUTES:
                if func == attribute:
                    return value
            read = self._read(func, first, args, kwargs or {})
            if read is not None:
                return read
        if func is Tensor.copy_ and first is not None and not first.is_meta and args[1].is_meta:
            if self.capturing:
                raise NotCapturable(f"a tensor of shape {tuple(first.shape)} is copied to the host")
            return first.zero_()
        if func is Tensor.pin_memory:
            return first
        if kwargs and kwargs.pop("pin_memory", False) and self.capturing:
            raise NotCapturable(f"{func.__name__} allocates pinned memory")
        if self.capturing and func in (torch.tensor, torch.as_tensor) and "cuda" in str(kwargs):
            raise NotCapturable(f"{func.__name__} copies values from the host")
        if func is not torch.device:
            args, kwargs = tree_map(_to_meta, (tuple(args), dict(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def _read(self, func: Any, x: Tensor, args: Any, kwargs: Any) -> Any:
        """The result of a function that reads values of `x` on the host; None for any other function."""
        host: Any = None
        if func is Tensor.__bool__:
            host = True
        elif func is Tensor.__int__:
            host = 1
        elif func in (Tensor.item, Tensor.tolist, Tensor.__float__, Tensor.__index__):
            host = func(torch.zeros(x.shape, dtype=x.dtype))
        elif func is Tensor.cpu or (func is Tensor.to and _is_cpu(args[1:], kwargs)):
            dtypes = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, torch.dtype)]
            host = torch.zeros(x.shape, dtype=dtypes[0] if dtypes else x.dtype)
        if host is not None and self.capturing:
            raise NotCapturable(f"{func.__name__} reads a tensor of shape {tuple(x.shape)} on the host")
        return host

    @contextlib.contextmanager
    def captured(self) -> Iterator[_Capture]:
        """Run a step as a CUDA graph captures it: NotCapturable if it leaves the device."""
        self.capturing = True
        try:
            with _Capture() as capture:
                yield capture
        finally:
            self.capturing = False


class _Capture(TorchDispatchMode):
    """Raises NotCapturable at operations on CPU tensors and at those whose result depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = "aten.index" in str(op) and any(
            i is not None and i.dtype == torch.bool for i in _indices(args)
        )
        on_device = any(isinstance(t, Tensor) and t.device.type != "cpu" for t in tree_leaves((args, kwargs)))
        if on_device and (by_mask or any(read in str(op) for read in READS)):
            raise NotCapturable(f"{op} reads values on the host")
        result = op(*args, **(kwargs or {}))
        self.operations += 1
        tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        # checkpointing of torch 2.11 makes an empty tensor on the CPU
        on_host = [t for t in tensors if t.device.type == "cpu" and t.numel()]
        copies = "copy" in str(op) and 0 < len(on_host) < len(tensors)
        # a 0-d tensor on the CPU is allowed: DeBERTa's scale of the scores is an argument of a kernel, and OPT's random
        # number for skipping a layer is read by the host alone
        if copies or any(t.dim() > 0 for t in on_host):
            raise NotCapturable(f"{op} on a CPU tensor")
        return result


def _indices(args: Any) -> list[Tensor | None]:
    """The index tensors of aten.index and aten.index_put; none for other operations."""
    return args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else []


def _to_meta(value: Any) -> Any:
    """The meta device for the CUDA device; any other value as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("meta")
    return "meta" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


def _is_cpu(args: Any, kwargs: Any) -> bool:
    devices = [*args, kwargs.get("device")]
    return any(d == "cpu" or (isinstance(d, torch.device) and d.type == "cpu") for d in devices)


def import_kernels(name: str) -> Any:
    """A module with Triton kernels. Where Triton is missing, the kernels cannot be run, but their operators exist."""
    full_name = f"whichlayers.engine.{name}"
    try:
        return importlib.import_module(full_name)
    except ImportError:
        triton = ModuleType("triton")
        triton.jit, triton.language = (lambda f: f), ModuleType("triton.language")  # type: ignore[attr-defined]
        sys.modules |= {"triton": triton, "triton.language": triton.language}
        try:
            return importlib.import_module(full_name)
        finally:
            del sys.modules["triton"], sys.modules["triton.language"]


def check_adam(param: Tensor, low: Tensor, m: Tensor, v: Tensor, grad: Tensor, *rest: Tensor) -> None:
    """In place of the kernel `adam`: what it needs of its inputs, and the plain update."""
    assert all(x.is_contiguous() for x in (param, low, m, v, grad))
    assert param.shape == low.shape == m.shape == v.shape == grad.shape
    assert [x.dtype for x in (param, low, m, v)] == [
        torch.bfloat16,
        torch.int16,
        torch.float32,
        torch.float32,
    ]
    assert all(x.is_contiguous() or x.shape[1] == 1 for x in rest[:3])
    optimizer.split_step(param, low, m, v, grad, *rest)


def check_sum_of_squares(grad: Tensor) -> Tensor:
    """In place of the kernel `sum_of_squares`."""
    assert grad.is_contiguous()
    return optimizer.sum_of_squares(grad)


@contextlib.contextmanager
def fake_cuda(monkeypatch: Any) -> Iterator[FakeCuda]:
    """Activate `FakeCuda`, with the operators of the Triton kernels and 1 GB of free memory."""
    monkeypatch.setattr(attention, "kernels", import_kernels("attention_kernels"))
    kernels = SimpleNamespace(adam=check_adam, sum_of_squares=check_sum_of_squares)
    monkeypatch.setattr(optimizer, "kernels", kernels)
    monkeypatch.setattr(prefix_cache, "free_memory", lambda device: 1 << 30)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    properties = SimpleNamespace(shared_memory_per_block_optin=232448)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    mode, run_backward = FakeCuda(), torch.autograd._engine_run_backward

    def run_in_mode(*args: Any, **kwargs: Any) -> Any:
        with mode:  # torch suspends it while it handles torch.autograd.grad
            return run_backward(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", run_in_mode)
    # checkpointing compares tensors that were saved while torch suspended the mode with others
    checks = torch.utils.checkpoint._allowed_determinism_checks_to_fns
    monkeypatch.setitem(checks, "default", lambda x: (x.shape, x.dtype))
    with torch.fx.experimental._config.patch(meta_nonzero_assume_all_nonzero=True), mode:
        yield mode
