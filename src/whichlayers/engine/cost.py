"""What stacks need: of memory, of time, and what to do when there was too little. Imports no torch."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass

from whichlayers.errors import WhichlayersError
from whichlayers.trial import Trial

HEADROOM = 0.1  # of the free memory, left free
FIXED_SHARE = 0.1  # of a stack's time, whatever its size
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")


@dataclass(frozen=True)
class Need:
    """Bytes of memory that stacks take."""

    first: int  # a stack of one trial
    more: int  # each further trial

    def of(self, trials: int) -> int:
        return self.first + (trials - 1) * self.more

    def fits(self, free: float, most: int) -> int:
        """How many trials, at most `most`, fit into `free` bytes; 0 if not even one does."""
        usable = free * (1 - HEADROOM)
        if self.of(1) > usable:
            return 0
        return most if self.of(most) <= usable else 1 + int((usable - self.first) // self.more)


@dataclass(frozen=True)
class Pace:
    """Seconds that stacks of one kind take, found on a stack of `trials`."""

    trials: int
    build: float  # model, data and optimiser put in place
    compiling: float  # for the first stack of its kind in a process
    capturing: float  # for every stack
    step: float  # of the whole stack, mean over the lengths of its batches
    error: float  # standard error of `step`, as a share of it
    evaluation: float  # of all trials, after an epoch
    ending: float  # weight changes

    def of(self, trials: int, steps: int, epochs: int, first: bool) -> float:
        """A stack of another size takes longer as it is larger, a fixed share aside."""
        size = FIXED_SHARE + (1 - FIXED_SHARE) * trials / self.trials
        once = self.capturing + (self.compiling if first else 0.0)
        return once + size * (self.build + steps * self.step + epochs * self.evaluation + self.ending)


def does_not_fit(need: int | None, free: float, trial: Trial, device: str) -> WhichlayersError:
    needs = "one trial ran out of memory" if need is None else f"one trial needs {need / 1e9:.2f} GB"
    return WhichlayersError(
        f"{trial.model} on {trial.task} does not fit into memory: {needs}, and"
        f" {max(0.0, free) * (1 - HEADROOM) / 1e9:.2f} GB may be used on {device}. Set training.batch_size"
        f" (now {trial.training.batch_size}) or training.max_length (now {trial.training.max_length}) lower,"
        " close other programs, use fewer workers, or another device"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """torch says it in several ways: of the GPU, of the system, of a library that it calls."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in OUT_OF_MEMORY)


def release() -> None:
    """Give memory that nobody uses any more back to the system and to the GPU."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
