"""An H200 in name only: torch.compile and Triton produce its machine code, and nothing is launched.

Tensors on "cuda" are torch's FakeTensors, with shapes, strides and dtypes but no values. Dynamo, AOTAutograd, Inductor
and Triton compile them as they do on the GPU, so that a graph break, a lowering that fails, a kernel that does not
compile for sm_90 or needs too much shared memory shows on any machine with g++, the CPU build of torch and Triton.

Import this module before torch. Everything here is specific to the version of torch in constraints.txt.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

assert "torch" not in sys.modules, "import fake_gpu before torch"


def _load_stub() -> None:
    """Compile fake_gpu.cpp and load it; torch takes its device the first time that it looks for one."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    torch_folder = Path(str(spec.origin)).parent
    with tempfile.TemporaryDirectory() as folder:
        library, lib = Path(folder) / "fake_gpu.so", torch_folder / "lib"
        command = ["g++", "-shared", "-fPIC", "-std=c++20", "-O1", f"-I{torch_folder}/include"]
        command += [str(Path(__file__).with_suffix(".cpp")), "-o", str(library)]
        command += [f"-L{lib}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{lib}"]
        subprocess.run(command, check=True)
        ctypes.CDLL(str(library))


_load_stub()

import torch  # noqa: E402
import torch._functorch.config  # noqa: E402
import torch._inductor.config  # noqa: E402
import torch._inductor.fx_passes.joint_graph as joint_graph  # noqa: E402
import torch._inductor.runtime.triton_helpers as triton_helpers  # noqa: E402
import torch._inductor.runtime.triton_heuristics as triton_heuristics  # noqa: E402
import triton  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch._dynamo import device_interface  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

DEVICE = torch.device("cuda:0")
SHARED_MEMORY = 232448  # bytes that a block may use
H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=141 << 30,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=SHARED_MEMORY,
    shared_memory_per_multiprocessor=SHARED_MEMORY + 1024,
    L2_cache_size=50 << 20,
    gcnArchName="",
    uuid="fake",
)
compiled_kernels: list[str] = []  # names of Inductor's kernels, in the order in which Triton compiled them
launched_kernels: list[str] = []  # names of our own kernels, each time one would be launched
# by own kernel: registers, bytes of stack, of shared memory
resources: dict[str, list[tuple[int, int, int]]] = {}


def _load_binary(name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
    """In place of loading one of our kernels, note its resources: module, function, registers, spills, threads."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        shown = subprocess.run(
            [tool, "-res-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    assert usage is not None
    registers, stack = int(usage[1]), int(usage[2])
    resources.setdefault(name, []).append((registers, stack, shared))
    return 1, 1, registers, stack, 1024


class _Driver:
    """Triton's driver: compiles for sm_90, and launches nothing."""

    utils = SimpleNamespace(
        load_binary=_load_binary,
        unload_module=lambda *_: None,
        get_device_properties=lambda _: {
            "max_shared_mem": SHARED_MEMORY,
            "max_num_regs": 65536,
            "multiprocessor_count": 132,
            "warpSize": 32,
        },
    )

    @staticmethod
    def launcher_cls(_: Any, metadata: Any) -> Any:
        return lambda *args, **kwargs: launched_kernels.append(metadata.name)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return DEVICE

    def get_device_interface(self) -> Any:
        return torch.cuda


def _count_compiled(self: Any) -> None:
    """In place of loading an Inductor kernel that Triton has compiled."""
    compiled_kernels.append(self.fn.__name__)
    self.launchers = []


def _install() -> None:
    """Replace what torch asks of the CUDA driver."""
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": H200,
        "get_device_capability": (9, 0),
        "get_device_name": H200.name,
        "is_bf16_supported": True,
        "mem_get_info": (100 << 30, 141 << 30),
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        **dict.fromkeys(("synchronize", "empty_cache", "_lazy_init", "set_device", "set_rng_state")),
    }

    def constant(value: Any) -> Any:
        return lambda *args, **kwargs: value

    for name, value in answers.items():
        setattr(torch.cuda, name, constant(value))
    torch.cuda.get_rng_state = lambda *args: torch.zeros(16, dtype=torch.uint8)
    torch.version.cuda = "13.0"
    for name in ("_cuda_getCurrentRawStream", "_cuda_maybeExchangeDevice", "_cuda_exchangeDevice"):
        setattr(torch._C, name, constant(0))
    torch.cuda._maybe_exchange_device = constant(0)  # two functions: Dynamo tells them apart
    torch.cuda._exchange_device = constant(0)
    device_interface.get_cuda_stream = constant(0)
    interface = device_interface.CudaInterface
    for name in ("is_available", "device_count", "current_device", "get_device_properties", "synchronize"):
        setattr(interface, name, staticmethod(getattr(torch.cuda, name)))
    interface.get_raw_stream = staticmethod(constant(0))
    interface.get_compute_capability = staticmethod(constant(90))
    interface.Worker.get_device_properties = staticmethod(constant(H200))
    interface.Worker.current_device = staticmethod(constant(0))
    triton.runtime.driver.set_active(_Driver())
    triton_helpers.set_driver_to_gpu = constant(None)
    triton_heuristics.CachingAutotuner._make_launchers = _count_compiled
    joint_graph.lazy_init = constant(None)  # patterns are traced with real tensors
    joint_graph.constant_fold_uniform_value = constant(None)  # computes on the device
    torch._functorch.config.force_non_lazy_backward_lowering = True
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.force_disable_caches = True
    torch._inductor.config.use_static_cuda_launcher = False
    FakeTensorMode.may_turn_const = constant(False)
    torch._C._set_only_lift_cpu_tensors(True)
    nn.Module._apply = _apply


def _apply(self: nn.Module, function: Any, recurse: bool = True) -> nn.Module:
    """nn.Module._apply without swapping: a parameter cannot become a FakeTensor in place."""
    for child in self.children():
        child._apply(function)
    for name, parameter in self._parameters.items():
        if parameter is not None:
            with torch.no_grad():
                value = function(parameter)
            if value is not parameter:
                self._parameters[name] = nn.Parameter(value.detach(), parameter.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = function(buffer)
    return self


_install()
fake_mode = FakeTensorMode(allow_non_fake_inputs=True)


def _on_cuda(value: Any) -> bool:
    return (isinstance(value, str) and value.split(":")[0] == "cuda") or (
        isinstance(value, torch.device) and value.type == "cuda"
    )


class FakeDevice(TorchFunctionMode):
    """While active, tensors that are made on or moved to "cuda" are FakeTensors; values read from them are 0 or True.

    Build a stack in it. Run its steps in `fake_mode` instead: they must not read values.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        first = args[0] if args else None
        if isinstance(first, FakeTensor):
            if func is Tensor.__bool__:
                return True
            if func in (Tensor.item, Tensor.tolist, Tensor.__int__, Tensor.__float__, Tensor.__index__):
                return func(torch.zeros(first.shape, dtype=first.dtype))
            to_host = func is Tensor.to and any(str(a) == "cpu" for a in (*args[1:], kwargs.get("device")))
            if func is Tensor.cpu or to_host:
                dtypes = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, torch.dtype)]
                return torch.zeros(first.shape, dtype=dtypes[0] if dtypes else first.dtype)
        on_device = any(_on_cuda(x) or isinstance(x, FakeTensor) for x in leaves)
        if not on_device or func is torch.device or getattr(func, "__name__", "") == "__get__":
            return func(*args, **kwargs)
        with fake_mode:
            args, kwargs = tree_map(_to_fake, (tuple(args), dict(kwargs)))
            return func(*args, **kwargs)


def _to_fake(value: Any) -> Any:
    is_real = isinstance(value, Tensor) and not isinstance(value, FakeTensor)
    return fake_mode.from_tensor(value) if is_real else value
