"""How many trials fit into memory at once: found by trying a step with one trial and with two.

Everything a stack holds is measured where it lies: weights, moments, gradients, activations at the longest
batch that the data can give, one chunk of evaluation. On a GPU torch counts the bytes, elsewhere `_Meter`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from whichlayers.data.tokenize import TokenisedTask
from whichlayers.engine.cost import Need, does_not_fit, is_out_of_memory, release
from whichlayers.engine.cuda_graphs import LENGTH_STEP
from whichlayers.engine.results import EngineSettings
from whichlayers.engine.stack_trainer import StackRun
from whichlayers.models.anatomy import Anatomy
from whichlayers.trial import Trial

CPU_OVERHEAD = 1.5  # what the allocator and the kernels' own buffers take beyond the tensors
SHARE_EVALUATED = 16
CGROUPS = Path("/sys/fs/cgroup")


def largest_stack(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    data: TokenisedTask,
    device: str | torch.device,
    settings: EngineSettings | None = None,
    most: int = 64,
) -> int:
    """How many of the trials, which may share a stack, to train at once. WhichlayersError if none fits."""
    most, device = min(len(trials), most), torch.device(device)
    encoder = encoder.to(device)  # type: ignore[arg-type]
    free = free_memory(device)
    need = measure(trials, encoder, data, device, settings, free, most)
    if free is None:
        return most
    if not (size := need.fits(free, most)):
        raise does_not_fit(need.first, free, trials[0], str(device))
    return size


def measure(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    data: TokenisedTask,
    device: str | torch.device,
    settings: EngineSettings | None = None,
    free: float | None = None,
    most: int = 64,
) -> Need:
    """What stacks of these trials take on the device, the encoder that lies there already not counted.

    Where one trial shows that none or `most` of them fit into `free` bytes, two are not tried.
    """
    device, settings = torch.device(device), settings or EngineSettings()
    encoder = encoder.to(device)  # type: ignore[arg-type]
    one = max(trials, key=lambda trial: trial.train_size)  # touches the most words
    if free is not None and (least := _least(one, encoder)) > free:
        return Need(least, least)
    first = _peak([one], encoder, data, device, settings)
    clear = free is not None and (Need(first, first).fits(free, most) == most or 2 * first > free)
    if most == 1 or clear:
        return Need(first, first)
    try:
        both = _peak([one, one], encoder, data, device, settings)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return Need(first, first)
    return Need(first, max(1, both - first))


def _least(trial: Trial, encoder: PreTrainedModel) -> int:
    """Bytes of the layers' weights and their moments: no trial takes less."""
    anatomy, order = Anatomy(encoder), trial.surgery.order
    kept = range(1, anatomy.depth + 1) if order is None else order
    return 12 * sum(p.numel() for n in kept for p in anatomy.layer_parameters(n).values())


def _peak(
    trials: list[Trial],
    encoder: PreTrainedModel,
    data: TokenisedTask,
    device: torch.device,
    settings: EngineSettings,
) -> int:
    graphs = device.type == "cuda" if settings.graphs is None else settings.graphs
    plain = EngineSettings(precision=settings.precision, compiled=False, graphs=False)
    with _watched(device) as memory:
        run = StackRun(trials, encoder, data, device, plain)
        run.stack.train()
        length = _pad_to_longest(run, data)
        for _ in range(2):  # the first makes the moments, the second has them
            memory.restart()
            run.step_on_device.zero_()  # there may be just one step to take
            run.train_step(length)
        kept = memory.now()
        training = memory.peak() - kept
        evaluation = _evaluation(run, memory)
        del run
    # captured steps have a pool of memory of their own, beside that of the steps that are not captured
    total = kept + training * graphs + max(training, evaluation)
    return int(total * (1 if device.type == "cuda" else CPU_OVERHEAD))


def _pad_to_longest(run: StackRun, data: TokenisedTask) -> int:
    """Let the run's batches be as long as the longest that any trial could see."""
    longest = int(np.diff(data.train.offsets).max())
    longest = -(-longest // LENGTH_STEP) * LENGTH_STEP if run.device.type == "cuda" else longest
    missing = longest - run.feed.ids.shape[1]
    if missing > 0:
        run.feed.ids = F.pad(run.feed.ids, (0, missing))
        if run.feed.types is not None:
            run.feed.types = F.pad(run.feed.types, (0, missing))
    run.feed.sizes.fill_(longest)  # every token counts: no batch is cheaper than its shape
    return longest


@torch.no_grad()
def _evaluation(run: StackRun, memory: _CudaMemory | _Meter) -> int:
    """Bytes beyond what is kept that the largest chunk of evaluation takes, judged by a share of its rows."""
    run.stack.eval()
    chunks = [chunk for feed in run.eval_feeds.values() for chunk in feed.chunks]
    most = 0.0
    for size in (lambda c: c["input_ids"].shape[1], lambda c: c["input_ids"].numel()):
        largest = max(chunks, key=size)
        rows = len(largest["input_ids"])
        few = max(2, rows // SHARE_EVALUATED)
        memory.restart()
        kept = memory.now()
        some = {name: v.repeat(2, 1)[:few] for name, v in largest.items()}
        run._logits(SimpleNamespace(chunks=[some]))  # type: ignore[arg-type]
        most = max(most, (memory.peak() - kept) * max(1, rows / few))
    return int(most)


# --- counting bytes ---


class _CudaMemory:
    def __init__(self, device: torch.device):
        self.device = device
        self.before = torch.cuda.memory_allocated(device)

    def restart(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def now(self) -> int:
        return torch.cuda.memory_allocated(self.device) - self.before

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) - self.before


class _Meter(TorchDispatchMode):
    """Counts the bytes of all storages made while it is on, and how many there were at most."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}  # bytes, by the storage's address in C++
        self.total = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.live:
            self.live[key] = storage.nbytes()
            self.total += storage.nbytes()
            self.most = max(self.most, self.total)
            weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.total -= self.live.pop(key)

    def restart(self) -> None:
        self.most = self.total

    def now(self) -> int:
        return self.total

    def peak(self) -> int:
        return self.most


@contextmanager
def _watched(device: torch.device) -> Iterator[_CudaMemory | _Meter]:
    """Counts what is allocated inside, and frees what is left of it in the end."""
    release()
    try:
        if device.type == "cuda":
            yield _CudaMemory(device)
        else:
            with _Meter() as meter:
                yield meter
    finally:
        release()


# --- what is free ---


def free_memory(device: torch.device | str = "cpu") -> int | None:
    """Bytes that may still be taken on the device, or None where that cannot be told."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [n for n in (_available(), *_left_in_cgroups()) if n is not None]
    return max(0, min(found)) if found else None


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _left_in_cgroups() -> list[int]:
    """What the limits of this process's control group, and of those it lies in, leave."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line.split(":", 2)[2] for line in lines if line.startswith("0::"))
    except (OSError, IndexError, StopIteration):
        own = "/"
    inner = CGROUPS / own.strip("/")
    left = []
    for group in (inner, *inner.parents):
        if not group.is_relative_to(CGROUPS):
            break
        try:
            limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            left.append(limit - used + int(stat.get("inactive_file", 0)))  # cached files give way
        except (OSError, ValueError):  # no such group here, or "max": no limit
            continue
    return left
