"""CUDA graphs on the fake device of fake_cuda.py: a replay runs the step again and compares it with the captured one.

A real replay launches the captured kernels with the captured addresses and numbers, whatever has become of them. The
code of the step must therefore do the same each time: the same operations, with the same numbers, on the same tensors
from outside the step. `NotCapturable` is raised if it does not, and if tensors from inside a captured step are used
outside of it: the next replay overwrites their memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from fake_cuda import DEVICE, FakeCuda, NotCapturable, fake_cuda
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from whichlayers.engine import cuda_graphs

ALLOCATED_BYTES = 1 << 20  # as `torch.cuda` reports it


class Trace(TorchDispatchMode):
    """What a step does: operations with their numbers, shapes and tensors from outside.

    Attributes:
        operations: One text for each.
        outside: Storages from outside the step, in the order of their first use.
        inside: Storages that the step allocated.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.outside: list[torch.UntypedStorage] = []
        self.inside: list[torch.UntypedStorage] = []
        self.names: dict[int, str] = {}  # by the address of the C++ storage

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.namespace == "profiler":  # of an optimizer of torch
            return op(*args, **(kwargs or {}))
        given = [self._describe(x) for x in tree_flatten((args, kwargs or {}))[0]]
        result = op(*args, **(kwargs or {}))
        self.operations.append(f"{op}({', '.join(given)})")
        for x in tree_flatten(result)[0]:
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in self.names:
                self._name(x, f"inside {len(self.inside)}", self.inside)
        return result

    def _describe(self, value: Any) -> str:
        if not isinstance(value, Tensor):
            return repr(value)
        if value.device.type == "cpu":  # 0-d: a number, which is captured
            return f"{value.tolist()}"
        storage = value.untyped_storage()
        if storage._cdata not in self.names:
            self._name(value, f"outside {len(self.outside)}", self.outside)
        place = f"{tuple(value.shape)} {value.stride()} {value.storage_offset()} {value.dtype}"
        return f"[{self.names[storage._cdata]}: {place}]"

    def _name(self, value: Tensor, name: str, storages: list[torch.UntypedStorage]) -> None:
        storage = value.untyped_storage()
        self.names[storage._cdata] = name
        storages.append(storage)  # so that no other storage gets its address


class Graph:
    """In place of torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.trace: Trace | None = None
        self.step: Any = None  # set by `CheckedStep`
        self.cuda: Any = None
        self.replays = 0

    def replay(self) -> None:
        assert self.trace is not None
        with self.cuda.traced() as trace:
            self.step()
        for now, before in zip(trace.operations, self.trace.operations, strict=False):
            if now != before:
                raise NotCapturable(f"a replay would not do\n{now}\nbut, as it was captured,\n{before}")
        if len(trace.operations) != len(self.trace.operations):
            raise NotCapturable("a step does not do the same number of operations as when it was captured")
        for index, (here, there) in enumerate(zip(trace.outside, self.trace.outside, strict=True)):
            if here._cdata != there._cdata:
                use = next(text for text in trace.operations if f"[outside {index}:" in text)
                raise NotCapturable(f"a replay would use another tensor than {use}")
        self.replays += 1


class CheckedStep(cuda_graphs.GraphedStep):
    """A graphed step whose graph can repeat it."""

    def _capture(self) -> None:
        super()._capture()
        if self.graph is not None:
            self.graph.step = self.step  # type: ignore[attr-defined]


class _Outside(TorchDispatchMode):
    """Raises NotCapturable where a tensor from inside a captured step is used outside of it."""

    def __init__(self, graphs: FakeGraphs) -> None:
        super().__init__()
        self.graphs = graphs

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.graphs.depth == 0:
            for x in tree_flatten((args, kwargs))[0]:
                if isinstance(x, Tensor) and x.untyped_storage()._cdata in self.graphs.captured_storages:
                    raise NotCapturable(f"{op} uses a tensor of a captured step: {tuple(x.shape)}")
        return op(*args, **(kwargs or {}))


class FakeGraphs:
    """Captures and replays steps on the fake device.

    Attributes:
        graphs: All that were captured.
    """

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.graphs: list[Graph] = []
        self.captured_storages: dict[int, torch.UntypedStorage] = {}
        self.depth = 0

    @contextlib.contextmanager
    def traced(self) -> Iterator[Trace]:
        """Run a step as it is captured."""
        self.depth += 1
        try:
            with self.cuda.captured(), Trace() as trace:
                yield trace
        finally:
            self.depth -= 1
        for storage in trace.outside:
            if storage._cdata in self.captured_storages:
                raise NotCapturable("a step uses a tensor from inside another captured step")
        self.captured_storages |= {storage._cdata: storage for storage in trace.inside}

    @contextlib.contextmanager
    def capture(self, graph: Graph, pool: Any = None, stream: Any = None) -> Iterator[None]:
        """In place of torch.cuda.graph."""
        with self.traced() as trace:
            yield
        graph.trace, graph.cuda = trace, self
        self.graphs.append(graph)

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.graphs)


class Event:
    """In place of torch.cuda.Event."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.recorded = False

    def record(self, stream: Any = None) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded

    def elapsed_time(self, end: Event) -> float:
        assert self.recorded
        assert end.recorded
        return 1.0


@contextlib.contextmanager
def fake_graphs(monkeypatch: Any) -> Iterator[FakeGraphs]:
    """`fake_cuda` with streams, events and graphs, on which whole stacks can be run."""
    stream = SimpleNamespace(
        device=DEVICE, wait_stream=lambda other: None, wait_event=lambda event: None, synchronize=lambda: None
    )
    with fake_cuda(monkeypatch) as cuda:
        graphs = FakeGraphs(cuda)
        answers: dict[str, Any] = {
            "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0,
            "current_stream": stream, "synchronize": None, "set_stream": None, "empty_cache": None,
            "graph_pool_handle": (0, 1), "mem_get_info": (1 << 34, 1 << 35), "reset_peak_memory_stats": None,
            "memory_allocated": ALLOCATED_BYTES, "max_memory_allocated": ALLOCATED_BYTES,
        }  # fmt: skip
        for name, value in answers.items():
            monkeypatch.setattr(torch.cuda, name, lambda *args, value=value, **kwargs: value)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: graphs.depth > 0)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", graphs.capture)
        monkeypatch.setattr(cuda_graphs, "GraphedStep", CheckedStep)
        monkeypatch.setattr(cuda_graphs, "side_stream", lambda device: stream)
        with _Outside(graphs):
            yield graphs
