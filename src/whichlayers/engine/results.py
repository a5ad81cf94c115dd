"""Data classes of the engine: results of finetuning a stack, settings of how it runs, and checkpoint paths."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from whichlayers.trial import Precision, Trial

if TYPE_CHECKING:
    from torch import Tensor

CHECKPOINT_FORMAT = "2"
CHECKPOINT_MINUTES = 5.0  # default time between two checkpoints of a stack


@dataclass(frozen=True)
class EpochRecord:
    """Losses and metrics of one trial after one epoch."""

    epoch: int  # from 1
    train_loss: float  # mean over the steps of the epoch
    dev_loss: float
    metrics: dict[str, float]
    seconds: float  # duration of the epoch, for the whole stack


@dataclass(frozen=True)
class WeightChange:
    """Norms of one weight matrix of one trial: of its change during training and of its initial value."""

    name: str  # parameter name in the encoder
    layer: int
    frobenius: float
    spectral: float
    start_frobenius: float
    start_spectral: float


@dataclass
class TrialResult:
    """Result of one trial of a finished stack; `error` is set if the trial failed."""

    trial_id: str
    epochs: list[EpochRecord] = field(default_factory=list)
    error: str | None = None
    seconds: float = 0.0  # duration of the whole stack
    memory: float | None = (
        None  # peak bytes of the whole stack in its first training steps; None: not measured
    )
    trained_parameters: int | None = None  # of this trial, with the head
    weight_changes: list[WeightChange] = field(default_factory=list)


@dataclass(frozen=True)
class EngineSettings:
    """How to run a stack. No setting changes a result by more than rounding."""

    precision: Precision = (
        "auto"  # of trials whose training has none: "auto" is bfloat16 on CUDA, else float32
    )
    bfloat16_weights: bool | None = (
        None  # in bfloat16: keep weights and activations in it, too; None: on CUDA only
    )
    compiled: bool | None = None  # use torch.compile; None: on CUDA, if the stack trains long enough
    graphs: bool | None = None  # use CUDA graphs; None: on CUDA only
    recompute: bool | None = (
        None  # activation checkpointing; None: for models of more than 400 million parameters
    )
    packed: bool = True  # compute on tokens without padding, where the model family allows it
    cache_prefix: bool = True  # compute the output of frozen lowest layers once, where it never changes
    slots: int | None = None  # pad the stack to this number of trials, to reuse code compiled for that shape
    similar_stacks: int = 1  # number of stacks of the same shape, which share the compiled code
    checkpoint_folder: Path | None = None  # folder for checkpoints; None: write none
    checkpoint_seconds: float = 60 * CHECKPOINT_MINUTES
    keep_checkpoint: bool = False  # keep it when the stack is finished; the caller deletes it

    def pad_trials(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials, followed by copies of the last one for the unused slots."""
        return [*trials, *[trials[-1]] * max(0, (self.slots or 0) - len(trials))]


def checkpoint_file(settings: EngineSettings, trials: Sequence[Trial]) -> Path | None:
    """Checkpoint path of a stack of these trials; None if checkpoints are off."""
    if settings.checkpoint_folder is None:
        return None
    identity = "\n".join([CHECKPOINT_FORMAT, settings.precision, *(t.id for t in trials)])
    name = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    return settings.checkpoint_folder / f"stack-{name}.safetensors"


OnEpoch = Callable[[str, EpochRecord], None]  # trial id, record
OnLoss = Callable[[int, list[float]], None]  # number of completed steps, mean loss of each trial
OnStep = Callable[[int], None]  # number of additional training steps, summed over trials
OnTrained = Callable[[TrialResult, "dict[str, Tensor]"], None]  # result, finetuned encoder weights by name
