"""How much memory is free on a device."""

from __future__ import annotations

from pathlib import Path

import torch

CGROUPS = Path("/sys/fs/cgroup")


def free_memory(device: torch.device | str = "cpu") -> int | None:
    """Bytes that can still be allocated on the device; None if unknown."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [n for n in (_available_memory(), *_cgroup_memory()) if n is not None]
    return max(0, min(limits)) if limits else None


def _available_memory() -> int | None:
    """Bytes that Linux reports as available; None on other systems."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _cgroup_memory() -> list[int]:
    """Bytes left below the memory limits of this process's control group and of its ancestors."""
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
            left.append(limit - used + int(stat.get("inactive_file", 0)))  # the page cache can be reclaimed
        except (OSError, ValueError):  # no such group, or "max": no limit
            continue
    return left
