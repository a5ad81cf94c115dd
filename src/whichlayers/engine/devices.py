"""The devices that models train on."""

from __future__ import annotations

import torch

from whichlayers.errors import WhichlayersError
from whichlayers.text import counted

DEVICES = "cpu, cuda or cuda:N"


def resolve_device(device: str | torch.device) -> torch.device:
    """A torch device from its name; WhichlayersError if it is not supported or not available."""
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise WhichlayersError(f"device {device}: no such device; use {DEVICES}") from None
    if resolved.type not in ("cpu", "cuda"):
        raise WhichlayersError(f"device {device}: not supported; use {DEVICES}")
    if resolved.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (resolved.index or 0) >= count:
            use = f"use cuda:0 to cuda:{count - 1}" if count > 1 else "use cuda:0" if count else "use cpu"
            raise WhichlayersError(f"device {device}: torch sees {counted(count, 'CUDA device')} here; {use}")
    return resolved


def select_device(device: torch.device) -> None:
    """Make a CUDA device the current one of this thread: Triton launches there, and new events belong to it."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
