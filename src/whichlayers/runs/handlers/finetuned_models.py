"""Finetuned models on disk, for the word probes that still need them.

One safetensors file per model, named by the id of its finetuning trial and written atomically. A resumed run reads them
instead of finetuning again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.files import atomic_write
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from torch import Tensor

MODEL_FORMAT = "1"


def model_path(folder: Path, finetuning: Trial) -> Path:
    """The file of the model that a finetuning trial produces."""
    return folder / f"{finetuning.id}.safetensors"


def save_finetuned(
    folder: Path, finetuning: Trial, weights: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write a finetuned model; `metadata` are JSON values, such as its metrics, that are stored with it."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    target = model_path(folder, finetuning)
    with atomic_write(target, fsync=True) as partial:
        save_file(dict(weights), partial, {"format": MODEL_FORMAT, "facts": json.dumps(dict(metadata))})


def load_finetuned(folder: Path | None, finetuning: Trial) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Weights and metadata of a finetuned model; None if there is no valid file."""
    from safetensors import SafetensorError, safe_open

    if folder is None or not (file := model_path(folder, finetuning)).is_file():
        return None
    try:
        with safe_open(file, "pt") as stored:
            header = stored.metadata()
            if header.get("format") != MODEL_FORMAT:
                return None
            weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            return weights, json.loads(header["facts"])
    except (SafetensorError, OSError, KeyError, ValueError):
        return None


def delete_unused(folder: Path, needed: Iterable[Trial]) -> None:
    """Delete the models of all but these finetuning trials."""
    if not folder.is_dir():
        return
    ids = {finetuning.id for finetuning in needed}
    for file in folder.iterdir():  # also files that are being written: ID.safetensors.RANDOM.partial
        if file.name.partition(".")[0] not in ids:
            with contextlib.suppress(OSError):
                file.unlink()
