"""How the engine runs a stack: precision, compilation, packing, checkpoints. Does not import torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whichlayers.trial import Precision, Trial

CHECKPOINT_FORMAT = "2"
CHECKPOINT_MINUTES = 5.0  # default time between two checkpoints of a stack


@dataclass(frozen=True)
class EngineSettings:
    """How to run a stack. No setting changes a result by more than rounding."""

    # of trials whose training has none: "auto" is bfloat16 on CUDA, else float32
    precision: Precision = "auto"
    # in bfloat16: keep weights and activations in it, too; None: on CUDA only
    bfloat16_weights: bool | None = None
    compiled: bool | None = None  # use torch.compile; None: on CUDA, if the stack trains long enough
    graphs: bool | None = None  # use CUDA graphs; None: on CUDA only
    # activation checkpointing; None: for models of more than 400 million parameters
    recompute: bool | None = None
    packed: bool = True  # compute on tokens without padding, where the model family allows it
    cache_prefix: bool = True  # compute the output of frozen lowest layers once, where it never changes
    slots: int | None = None  # pad the stack to this number of trials, to reuse code compiled for that shape
    similar_stacks: int = 1  # number of stacks of the same shape, which share the compiled code
    checkpoint_folder: Path | None = None  # folder for checkpoints; None: write none
    checkpoint_seconds: float = 60 * CHECKPOINT_MINUTES
    keep_checkpoint: bool = False  # keep it when the stack is finished; the caller deletes it

    def may_compile(self, on_cuda: bool) -> bool:
        """Whether layers are compiled if the stack trains long enough."""
        return on_cuda if self.compiled is None else self.compiled

    def uses_graphs(self, on_cuda: bool) -> bool:
        """Whether training steps are captured as CUDA graphs."""
        return on_cuda if self.graphs is None else self.graphs

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
