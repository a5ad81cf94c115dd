"""Checkpoints of a stack in training: an interrupted stack resumes from its checkpoint with the same result.

A stack has one safetensors file, written to a temporary name and moved into place, and deleted when the stack is
finished (by the caller if `keep_checkpoint` is set). All randomness is a function of trial and step, so the state
consists of weights, moments and the step number. Tensors are written and read one by one, since a stack may be larger
than the host's memory.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from whichlayers.engine.results import EpochRecord, TrialResult
from whichlayers.engine.settings import CHECKPOINT_FORMAT, EngineSettings, checkpoint_file
from whichlayers.files import atomic_write
from whichlayers.text import counted, format_bytes, format_duration
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from whichlayers.engine.stack_trainer import StackTrainer

MAX_TIME_FRACTION = 0.05  # fraction of the time that may be spent on saving
MIN_FREE_BYTES = 2_000_000_000  # disk space that checkpoints leave free
DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int16: "I16", torch.int32: "I32"}
TRIAL_SUFFIX = re.compile(r"#(\d+)$")  # names of tensors that belong to a single trial end in its number

log = logging.getLogger(__name__)


class Checkpoint:
    """The checkpoint of one stack; does nothing if the settings name no folder.

    Copies of the last trial that pad the stack to its number of slots are not saved, so that a checkpoint can be
    restored with any number of slots.
    """

    def __init__(self, settings: EngineSettings, trials: Sequence[Trial]):
        self.trials = len(trials)
        self.interval, self.last_saved = settings.checkpoint_seconds, time.monotonic()
        self.warned = False
        self.file = checkpoint_file(settings, trials)

    def save_if_due(self, trainer: StackTrainer, results: list[TrialResult]) -> None:
        """Save if the interval has passed. If that is not possible, this is logged once and training continues."""
        began = time.monotonic()
        if self.file is None or began - self.last_saved < self.interval:
            return
        try:
            if (problem := self._lack_of_space(trainer)) is None:
                self.save(trainer, results)
        except OSError as error:
            problem = str(error)
        if problem is not None and not self.warned:
            log.warning(
                "cannot write a checkpoint (%s): training continues without one, and if this stack is interrupted,"
                " its %s of training are repeated",
                problem,
                format_duration(began - self.last_saved),
            )
            self.warned = True
        self.last_saved = time.monotonic()
        self.interval = max(self.interval, (self.last_saved - began) / MAX_TIME_FRACTION)

    def _lack_of_space(self, trainer: StackTrainer) -> str | None:
        """Why a checkpoint does not fit on the disk next to the previous one; None if it fits."""
        assert self.file is not None
        self.file.parent.mkdir(parents=True, exist_ok=True)
        size = sum(t.numel() * t.element_size() for t in self._without_padding(trainer.state()).values())
        free = shutil.disk_usage(self.file.parent).free
        if free - size >= MIN_FREE_BYTES:
            return None
        return (
            f"that of {counted(self.trials, 'trial')} takes {format_bytes(size)}, and {format_bytes(free)} are free;"
            " use --checkpoints with a folder on a larger disk, or --max-stack for smaller stacks"
        )

    def save(self, trainer: StackTrainer, results: list[TrialResult]) -> None:
        """Write the trainer's state and the results so far, atomically."""
        assert self.file is not None
        records = json.dumps([dataclasses.asdict(r) for r in results])
        with atomic_write(self.file, fsync=True) as partial:
            state = self._without_padding(trainer.state())
            _write_safetensors(state, partial, {"outcomes": records, "format": CHECKPOINT_FORMAT})

    def _without_padding(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state of the trials, without that of the slots that pad the stack."""
        kept = {}
        for name, tensor in state.items():
            if (match := TRIAL_SUFFIX.search(name)) is None:
                kept[name] = tensor[: self.trials] if tensor.dim() else tensor
            elif int(match[1]) < self.trials:
                kept[name] = tensor
        return kept

    def restore(self, trainer: StackTrainer, results: list[TrialResult]) -> int:
        """Load the saved state into `trainer` and `results`.

        Returns:
            The number of completed steps; 0 if there is no usable checkpoint.
        """
        if self.file is None or not self.file.exists():
            return 0
        try:
            with safe_open(self.file, "pt") as stored:
                records = json.loads(stored.metadata()["outcomes"])
                epochs = {r["trial_id"]: [EpochRecord(**e) for e in r["epochs"]] for r in records}
                errors = {r["trial_id"]: r["error"] for r in records}
                saved = _SavedState(stored, self.trials, len(trainer.trials))
                # before the first step, some moments do not exist yet
                expected = self._without_padding(trainer.state())
                if set(epochs) != {r.trial_id for r in results} or any(
                    name not in saved or saved.shape(name) != list(tensor.shape)
                    for name, tensor in expected.items()
                ):
                    return 0
                done = self._load(trainer, saved)
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            log.warning(
                "the checkpoint %s is damaged (%s); its stack restarts from the beginning",
                self.file.name,
                error,
            )
            return 0
        for result in results:
            result.epochs, result.error = epochs[result.trial_id], errors[result.trial_id]
        return done

    def _load(self, trainer: StackTrainer, saved: _SavedState) -> int:
        try:
            return trainer.load_state(saved)  # type: ignore[arg-type]
        except Exception as error:  # the trainer may be half loaded, and a retry must not fail again
            self.delete()
            raise RuntimeError(f"cannot load the checkpoint of a stack: {error}") from error

    def delete(self) -> None:
        """Delete the file if it exists."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)


def _write_safetensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file with one tensor at a time in the host's memory."""
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
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


class _SavedState(Mapping[str, Tensor]):
    """The tensors of a checkpoint, read on access, with the last trial repeated for the slots that pad the stack."""

    def __init__(self, stored: Any, trials: int, slots: int):
        self.stored, self.trials, self.slots = stored, trials, slots
        self.names = set(stored.keys())

    def _stored_name(self, name: str) -> str:
        match = TRIAL_SUFFIX.search(name)
        return (
            f"{name[: match.start()]}#{self.trials - 1}" if match and int(match[1]) >= self.trials else name
        )

    def shape(self, name: str) -> list[int]:
        return list(self.stored.get_slice(name).get_shape())

    def __getitem__(self, name: str) -> Tensor:
        source = self._stored_name(name)
        if source not in self.names:
            raise KeyError(name)
        tensor: Tensor = self.stored.get_tensor(source)
        padding = self.slots - self.trials
        if tensor.dim() == 0 or padding <= 0 or TRIAL_SUFFIX.search(name):
            return tensor
        return torch.cat([tensor, tensor[-1:].expand(padding, *tensor.shape[1:])])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._stored_name(name) in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
