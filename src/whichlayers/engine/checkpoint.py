"""Save a long stack while it trains and go on from there after a crash, with the same result.

One safetensors file a stack, written beside and moved into place, deleted when the stack is done (by the
caller, where `keep_checkpoint` says so). All
randomness is a function of trial and step: weights, moments and the step's number are all there is to save.
Tensors are written and read one by one: a stack may be larger than the host's memory.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from whichlayers.engine.results import (
    CHECKPOINT_FORMAT,
    EngineSettings,
    EpochRecord,
    Outcome,
    checkpoint_file,
)
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from whichlayers.engine.stack_trainer import StackRun

SHARE_OF_TIME = 0.05  # at most this much of the time goes into saving
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int16: "I16", torch.int32: "I32"}
ONE_TRIAL = re.compile(r"#(\d+)$")  # a tensor of a single trial says whose it is

log = logging.getLogger(__name__)


class Checkpoint:
    """The checkpoint of one stack; does nothing without a folder.

    Only the trials' own slots are saved, not those that fill the stack up (copies of the last trial): what is
    saved fits the same trials in any number of slots.
    """

    def __init__(self, settings: EngineSettings, trials: Sequence[Trial]):
        self.trials = len(trials)
        self.wait, self.last = settings.checkpoint_seconds, time.monotonic()
        self.warned = False
        self.file = checkpoint_file(settings, trials)

    def save_when_due(self, run: StackRun, outcomes: list[Outcome]) -> None:
        if self.file is None or time.monotonic() - self.last < self.wait:
            return
        began = time.monotonic()
        try:
            self.save(run, outcomes)
        except OSError as error:  # a full disk, most likely: the stack goes on
            if not self.warned:
                log.warning("no checkpoint could be written (%s); training goes on without", error)
                self.warned = True
        self.last = time.monotonic()
        self.wait = max(self.wait, (self.last - began) / SHARE_OF_TIME)

    def save(self, run: StackRun, outcomes: list[Outcome]) -> None:
        assert self.file is not None
        records = json.dumps([dataclasses.asdict(o) for o in outcomes])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_suffix(f".{os.getpid()}.partial")
        try:
            _write(self._own(run.state()), partial, {"outcomes": records, "format": CHECKPOINT_FORMAT})
            os.replace(partial, self.file)
        finally:
            partial.unlink(missing_ok=True)

    def _own(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state without the slots that fill the stack up."""
        own = {}
        for name, tensor in state.items():
            if (of := ONE_TRIAL.search(name)) is None:
                own[name] = tensor[: self.trials] if tensor.dim() else tensor
            elif int(of[1]) < self.trials:
                own[name] = tensor
        return own

    def restore(self, run: StackRun, outcomes: list[Outcome]) -> int:
        """Bring run and outcomes back to the saved state; the number of steps done, 0 where none is saved."""
        if self.file is None or not self.file.exists():
            return 0
        try:
            with safe_open(self.file, "pt") as stored:
                facts = json.loads(stored.metadata()["outcomes"])
                epochs = {f["trial_id"]: [EpochRecord(**e) for e in f["epochs"]] for f in facts}
                errors = {f["trial_id"]: f["error"] for f in facts}
                saved = _Saved(stored, self.trials, len(run.trials))
                expected = self._own(run.state())  # before the first step some moments are not there yet
                if set(epochs) != {o.trial_id for o in outcomes} or any(
                    name not in saved or saved.shape(name) != list(tensor.shape)
                    for name, tensor in expected.items()
                ):
                    return 0
                done = self._load(run, saved)
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            log.warning("the checkpoint %s is damaged (%s): its stack starts anew", self.file.name, error)
            return 0
        for outcome in outcomes:
            outcome.epochs, outcome.error = epochs[outcome.trial_id], errors[outcome.trial_id]
        return done

    def _load(self, run: StackRun, saved: _Saved) -> int:
        try:
            return run.load_state(saved)  # type: ignore[arg-type]
        except Exception as error:  # half loaded: this run is of no use, and the next must not try again
            self.delete()
            raise RuntimeError(f"the checkpoint of a stack could not be loaded: {error}") from error

    def delete(self) -> None:
        if self.file is not None:
            self.file.unlink(missing_ok=True)


def _write(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """A safetensors file, one tensor in the host's memory at a time."""
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            flat = tensor.detach().cpu().contiguous().flatten()
            flat.view(torch.uint8).numpy().tofile(file)
        file.flush()
        os.fsync(file.fileno())


class _Saved(Mapping[str, Tensor]):
    """A checkpoint's tensors, read when asked for, the last trial's repeated for every slot that fills up."""

    def __init__(self, stored: Any, trials: int, slots: int):
        self.stored, self.trials, self.slots = stored, trials, slots
        self.names = set(stored.keys())

    def _source(self, name: str) -> str:
        of = ONE_TRIAL.search(name)
        return f"{name[: of.start()]}#{self.trials - 1}" if of and int(of[1]) >= self.trials else name

    def shape(self, name: str) -> list[int]:
        return list(self.stored.get_slice(name).get_shape())

    def __getitem__(self, name: str) -> Tensor:
        source = self._source(name)
        if source not in self.names:
            raise KeyError(name)
        tensor: Tensor = self.stored.get_tensor(source)
        filling = self.slots - self.trials
        if tensor.dim() == 0 or filling <= 0 or ONE_TRIAL.search(name):
            return tensor
        return torch.cat([tensor, tensor[-1:].expand(filling, *tensor.shape[1:])])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._source(name) in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
