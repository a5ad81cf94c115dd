"""Disk space of a study: what is used, what a run will need, and whether finetuned models fit on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whichlayers.runs.assets import Assets
from whichlayers.runs.events import Note, OnEvent
from whichlayers.runs.plan import Stack, models_to_keep
from whichlayers.text import format_bytes

CHECKPOINT_COPIES = 3  # a checkpoint holds the weights and both moments of Adam
TRIAL_BYTES = 1600  # of a trial with its point in results.db, indices included


@dataclass(frozen=True)
class DiskUsage:
    """Disk space in bytes: the maximum while the study runs (first three), and what remains in the end."""

    checkpoints: int
    finetuned_models: int  # kept for word probes
    activations: int  # hidden states of the words of a corpus
    cache: int
    results: int


def estimate_disk(
    stacks: Sequence[Stack], points: int, workers: int, assets: Assets, cached: int, on_cuda: bool = False
) -> DiskUsage:
    """Estimated disk space of a study.

    Args:
        stacks: All stacks.
        points: Number of points of the study.
        workers: Number of workers.
        assets: Models and data.
        cached: Size of the cache of tokens and hidden states.
        on_cuda: Whether hidden states of words stay in the memory of a GPU.
    """
    results = TRIAL_BYTES * max(points, sum(len(stack.trials) for stack in stacks))
    activations: list[int] = []  # by stack
    for stack in stacks:
        handler, depth = stack.handler, assets.model_of(stack.trials[0]).depth
        results += sum(handler.result_bytes(trial, depth) for trial in stack.trials)
        activations.append(
            0 if on_cuda else max(handler.activation_bytes(trial, assets) for trial in stack.trials)
        )
    workers = max(1, workers)
    checkpoints = checkpoint_bytes(stacks, workers, assets.weights_bytes)
    kept_models = max((len(models_to_keep([stack])) for stack in stacks), default=0)
    return DiskUsage(
        checkpoints=2 * checkpoints,  # an old checkpoint is deleted after the new one is written
        finetuned_models=assets.weights_bytes * workers * kept_models,
        activations=max(activations, default=0) * min(workers, sum(map(bool, activations))),
        cache=cached,
        results=results,
    )


def checkpoint_bytes(stacks: Sequence[Stack], workers: int, weights_bytes: int) -> int:
    """Size of one checkpoint of the largest stack for each worker; `weights_bytes` is that of the largest model."""
    return weights_bytes * CHECKPOINT_COPIES * max(1, workers) * _largest_stack(stacks)


def finetuned_models_folder(
    folder: Path, stacks: Sequence[Stack], weights_bytes: int, on_event: OnEvent
) -> Path | None:
    """The folder for finetuned models that word probes need; None (with a note) if they could fill the disk."""
    size = weights_bytes * _largest_stack(stacks) * 2
    if shutil.disk_usage(folder.parent).free > 2 * size:
        return folder
    on_event(
        Note(
            f"finetuned models are not saved: they could take {format_bytes(size)}, too much for this disk; a resumed"
            " run will finetune them again"
        )
    )
    return None


def _largest_stack(stacks: Sequence[Stack]) -> int:
    """The largest number of models that any of these stacks finetunes."""
    return max((stack.models for stack in stacks if stack.finetunes), default=0)


def disk_use(folder: Path) -> dict[str, int]:
    """Bytes of each entry of a folder, largest first."""
    use = {entry.name: _size(entry) for entry in folder.iterdir()}
    return dict(sorted(use.items(), key=lambda item: -item[1]))


def _size(entry: Path) -> int:
    try:
        if entry.is_dir() and not entry.is_symlink():
            return sum(map(_size, entry.iterdir()))
        return entry.lstat().st_size
    except OSError:  # deleted since it was listed
        return 0
