"""Errors about memory: how they are recognized, what they say, and what frees memory. Does not import torch."""

from __future__ import annotations

import ctypes
import gc
import sys

from whichlayers.engine.cost import BYTES_PER_PARAMETER, HEADROOM
from whichlayers.errors import WhichlayersError
from whichlayers.text import format_bytes
from whichlayers.trial import Trial

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")


def out_of_memory_error(needed: int | None, free: float, trial: Trial, device: str) -> WhichlayersError:
    """The error for a trial that does not fit into memory.

    Args:
        needed: Bytes that one trial takes; None if it ran out of memory before that was known.
        free: Free bytes on the device.
    """
    reason = "one trial ran out of memory" if needed is None else f"one trial needs {format_bytes(needed)}"
    return WhichlayersError(
        f"{trial.model} on {trial.task} does not fit into memory: {reason}, and"
        f" {format_bytes(max(0.0, free) * (1 - HEADROOM))} may be used on {device}. Reduce training.batch_size"
        f" (now {trial.training.batch_size}) or training.max_length (now {trial.training.max_length}),"
        " close other programs, or use fewer workers or another device. A trial takes about"
        f" {BYTES_PER_PARAMETER} bytes per trained parameter, so about {_millions(free)} of them fit: use a smaller"
        " model, drop layers, or train fewer parameters (freeze layers, or LoRA)"
    )


def _millions(free: float) -> str:
    """How many trained parameters fit into this many free bytes, as text."""
    return f"{max(0.0, free) * (1 - HEADROOM) / BYTES_PER_PARAMETER / 1e6:,.3g} million"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the GPU, the system or a library ran out of memory."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in OUT_OF_MEMORY)


def release_memory() -> None:
    """Collect garbage and return unused cached memory to the system and to the GPU."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # glibc keeps freed blocks of up to 32 MB, gigabytes after a stack
