"""Results of finetuning a stack, and the callbacks that receive them. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


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
    # peak bytes of the whole stack in its first training steps; None: not measured
    memory: float | None = None
    trained_parameters: int | None = None  # of this trial, with the head
    weight_changes: list[WeightChange] = field(default_factory=list)
    # of probes on top neurons: (layer, neuron), most important first
    top_neurons: list[tuple[int, int]] | None = None


OnEpoch = Callable[[str, EpochRecord], None]  # trial id, record
OnLoss = Callable[[int, list[float]], None]  # number of completed steps, mean loss of each trial
OnStep = Callable[[int], None]  # number of additional training steps, summed over trials
OnTrained = Callable[[TrialResult, "dict[str, Tensor]"], None]  # result, finetuned encoder weights by name
