"""Save a long stack while it trains and go on from there after a crash, with the same result.

One safetensors file a stack, written beside and moved into place, deleted when the stack is done. All
randomness is a function of trial and step, so weights, moments and the step's number are all there is to save.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from carryover.engine.outcome import EngineSettings, EpochRecord, Outcome
from carryover.trial import Trial

if TYPE_CHECKING:
    from carryover.engine.stack_run import StackRun

FORMAT = "1"


class Checkpoint:
    """The checkpoint of one stack; does nothing without a folder."""

    def __init__(self, settings: EngineSettings, trials: Sequence[Trial]):
        self.every, self.last = settings.checkpoint_seconds, time.monotonic()
        self.file: Path | None = None
        if settings.checkpoint_folder is not None:
            # precision and filling decide the tensors' shapes and types
            identity = "\n".join([FORMAT, settings.precision, str(settings.slots), *(t.id for t in trials)])
            name = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
            self.file = settings.checkpoint_folder / f"stack-{name}.safetensors"

    def save_when_due(self, run: StackRun, outcomes: list[Outcome]) -> None:
        if self.file is not None and time.monotonic() - self.last >= self.every:
            self.save(run, outcomes)
            self.last = time.monotonic()

    def save(self, run: StackRun, outcomes: list[Outcome]) -> None:
        assert self.file is not None
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in run.state().items()}
        records = json.dumps([dataclasses.asdict(o) for o in outcomes])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_suffix(f".{os.getpid()}.partial")
        try:
            save_file(tensors, partial, metadata={"outcomes": records, "format": FORMAT})
            os.replace(partial, self.file)
        finally:
            partial.unlink(missing_ok=True)

    def restore(self, run: StackRun, outcomes: list[Outcome]) -> int:
        """Bring run and outcomes back to the saved state; the number of steps done, 0 where none is saved."""
        if self.file is None or not self.file.exists():
            return 0
        try:
            with safe_open(self.file, "pt", device=str(run.device)) as stored:
                state: dict[str, torch.Tensor] = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
                records = json.loads(stored.metadata()["outcomes"])
        except (SafetensorError, KeyError, ValueError):
            return 0  # damaged: start the stack anew
        if {n: t.shape for n, t in run.state().items() if n.startswith("work/")} != {
            n: t.shape for n, t in state.items() if n.startswith("work/")
        }:
            return 0
        for outcome, record in zip(outcomes, records, strict=True):
            outcome.epochs = [EpochRecord(**e) for e in record["epochs"]]
            outcome.error = record["error"]
        return run.load_state(state)

    def delete(self) -> None:
        if self.file is not None:
            self.file.unlink(missing_ok=True)
