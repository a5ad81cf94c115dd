"""Finetuned models on the disk, while questions about words wait for them.

One safetensors file a model, written beside and moved into place, named by the id of its finetuning. A run that
was killed finds them again and finetunes none twice; they go when all their questions are answered.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.runs.plan import Stack
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "1"


def file_of(folder: Path, finetuning: Trial) -> Path:
    return folder / f"{finetuning.id}.safetensors"


def save(folder: Path, finetuning: Trial, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """`facts`: what else there is to know of it, as plain values."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    target = file_of(folder, finetuning)
    partial = target.with_suffix(f".{os.getpid()}.partial")
    try:
        save_file(dict(weights), partial, {"format": FORMAT, "facts": json.dumps(dict(facts))})
        with open(partial, "rb") as written:
            os.fsync(written.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def load(folder: Path | None, finetuning: Trial) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Weights and facts; None where there is no such file, or none that is whole."""
    from safetensors import SafetensorError, safe_open

    if folder is None or not (file := file_of(folder, finetuning)).is_file():
        return None
    try:
        with safe_open(file, "pt") as stored:
            told = stored.metadata()
            if told.get("format") != FORMAT:
                return None
            return {name: stored.get_tensor(name) for name in stored.keys()}, json.loads(told["facts"])  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError):
        return None


def keep_only(folder: Path, stacks: Iterable[Stack]) -> None:
    """Delete the models that none of these stacks has a question for."""
    if not folder.is_dir():
        return
    wanted = {name for stack in stacks for name in _names(stack)}
    for file in folder.iterdir():
        if file.name.partition(".")[0] not in wanted:
            with contextlib.suppress(OSError):
                file.unlink()


def _names(stack: Stack) -> set[str]:
    finetunings = {
        trial.seed: trial.finetuning
        for trial in stack.trials
        if trial.word_probe is not None and trial.finetuning
    }
    return {finetuning.id for finetuning in finetunings.values() if finetuning is not None}
