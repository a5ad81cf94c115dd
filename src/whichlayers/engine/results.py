"""What finetuning gives back, and what it may be told about how to run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from whichlayers.trial import Trial

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class EpochRecord:
    """One trial after one epoch."""

    epoch: int  # from 1
    train_loss: float  # mean over the epoch's steps
    dev_loss: float
    metrics: dict[str, float]
    seconds: float  # of the epoch, for the whole stack


@dataclass(frozen=True)
class WeightChange:
    """One matrix of one trial: norms of what training changed, and of what it was at the start."""

    name: str  # of the parameter in the encoder
    layer: int
    frobenius: float
    spectral: float
    start_frobenius: float
    start_spectral: float


@dataclass
class Outcome:
    """One trial when its stack is done; `error` says why it has no result."""

    trial_id: str
    epochs: list[EpochRecord] = field(default_factory=list)
    error: str | None = None
    seconds: float = 0.0  # of the whole stack
    weight_changes: list[WeightChange] = field(default_factory=list)


@dataclass(frozen=True)
class EngineSettings:
    """How to run, never what to compute: no setting here changes a result beyond rounding."""

    precision: str = "auto"  # "auto": bfloat16 compute on CUDA, float32 elsewhere; or "float32", "bfloat16"
    compiled: bool | None = None  # None: on CUDA
    graphs: bool | None = None  # None: on CUDA
    slots: int | None = None  # fill the stack up to this size, to reuse code compiled for it
    alike: int = 1  # stacks of this shape that the code compiled for it will serve
    checkpoint_folder: Path | None = None  # where long stacks are saved
    checkpoint_seconds: float = 300.0
    keep_checkpoint: bool = False  # when the stack is done, for a caller who first puts its outcomes away

    def filled(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials, and the last of them once more for every slot that is left."""
        return [*trials, *[trials[-1]] * max(0, (self.slots or 0) - len(trials))]


CHECKPOINT_FORMAT = "2"


def checkpoint_file(settings: EngineSettings, trials: Sequence[Trial]) -> Path | None:
    """Where a stack of these trials is saved; None: nowhere."""
    if settings.checkpoint_folder is None:
        return None
    identity = "\n".join([CHECKPOINT_FORMAT, settings.precision, *(t.id for t in trials)])
    name = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    return settings.checkpoint_folder / f"stack-{name}.safetensors"


OnEpoch = Callable[[str, EpochRecord], None]
OnStep = Callable[[int], None]  # how many more trial-steps are done
OnTrained = Callable[[Outcome, "dict[str, Tensor]"], None]  # a trial and the weights of its encoder, by name
