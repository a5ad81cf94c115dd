"""A stack's examples, kept on the device: which rows each trial sees at each step, and the dev set.

Everything a step needs is put in place before the first one. Taking a batch is a lookup by the step's number,
which lies on the device as well, so that a captured step needs nothing from the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whichlayers.data.batches import epoch_order, pad, subset
from whichlayers.data.tokenize import TokenisedSplit, TokenisedTask
from whichlayers.trial import Trial

LENGTH_STEP = 16  # captured lengths are multiples of this


@dataclass(frozen=True)
class StackBatch:
    """One batch of every trial: T*B rows, trial by trial."""

    inputs: dict[str, Tensor]  # input_ids, attention_mask, (token_type_ids): (T*B, L)
    labels: Tensor  # (T, B)
    weights: Tensor  # (T, B) float: 1 for an example, 0 for the filling of an epoch's last batch


class TrainFeed:
    """The training batches of all trials of a stack."""

    def __init__(self, trials: Sequence[Trial], data: TokenisedTask, device: torch.device, with_types: bool):
        first = trials[0]
        self.batch, self.steps = first.training.batch_size, first.steps
        rows = np.full((len(trials), first.training.epochs, first.steps_per_epoch * self.batch), -1, np.int64)
        slots: dict[int, int] = {}  # the first trial of each seed: trials of one seed see the same rows
        for t, trial in enumerate(trials):
            if (twin := slots.setdefault(trial.seed, t)) != t:
                rows[t] = rows[twin]
                continue
            chosen = subset(len(data.train), trial.train_size, trial.seed)
            for epoch in range(trial.training.epochs):
                rows[t, epoch, : len(chosen)] = chosen[epoch_order(len(chosen), trial.seed, epoch)]
        rows = rows.reshape(len(trials), self.steps, self.batch)

        used, place = np.unique(
            rows, return_inverse=True
        )  # place in the tables below, shifted if -1 is there
        shift = int(used[0] == -1)
        used = used[shift:]
        longest = int(np.diff(data.train.offsets)[used].max())
        room = math.ceil(longest / LENGTH_STEP) * LENGTH_STEP  # what a length may be rounded up to
        table = pad(data.train, used, data.pad_id, room)
        lengths = table.attention_mask.sum(1)  # (N,)
        place = place.reshape(rows.shape) - shift
        of_rows = np.where(place >= 0, lengths[place.clip(0)], 0)  # (T, steps, B)
        self.lengths: np.ndarray = of_rows.max(
            (0, 2)
        )  # (steps,) longest sequence of each step, known to the host

        def put(array: np.ndarray, dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(array).to(device=device, dtype=dtype)

        self.order = put(place, torch.int32)  # (T, steps, B)
        self.ids = put(table.input_ids, torch.int32)  # (N, longest)
        self.sizes = put(lengths, torch.int32)  # (N,)
        self.types = None
        if with_types and table.token_type_ids is not None:
            self.types = put(table.token_type_ids, torch.uint8)
        self.labels = put(table.labels, torch.float32 if data.kind == "regression" else torch.int64)

    def at(self, step: Tensor, length: int) -> StackBatch:
        """The batch of a step; `step` is a tensor on the device, `length` what to pad to."""
        rows = self.order.index_select(1, step.view(1)).squeeze(1)  # (T, B)
        real, flat = rows >= 0, rows.clamp(min=0).flatten().long()
        inputs = {
            "input_ids": self.ids[flat, :length].long(),
            "attention_mask": (
                torch.arange(length, device=flat.device, dtype=torch.int32) < self.sizes[flat][:, None]
            ).long(),
        }
        if self.types is not None:
            inputs["token_type_ids"] = self.types[flat, :length].long()
        return StackBatch(inputs, self.labels[flat].view(rows.shape), real.float())


def touched_ids(trials: Sequence[Trial], data: TokenisedTask) -> list[np.ndarray]:
    """For each trial, the token ids that occur in its training subset, and the padding."""
    by_seed: dict[int, np.ndarray] = {}
    for trial in trials:
        if trial.seed not in by_seed:
            chosen = pad(data.train, subset(len(data.train), trial.train_size, trial.seed), data.pad_id)
            by_seed[trial.seed] = np.union1d(chosen.input_ids, [data.pad_id])
    return [by_seed[trial.seed] for trial in trials]


class EvalFeed:
    """A dev set in chunks of like length, each within a budget of tokens for the whole stack."""

    def __init__(
        self,
        split: TokenisedSplit,
        pad_id: int,
        trials: int,
        device: torch.device,
        with_types: bool,
        tokens_at_once: int,
    ):
        lengths = np.diff(split.offsets)
        by_length = np.argsort(lengths, kind="stable")
        self.split, self.order = split, by_length
        self.chunks: list[dict[str, Tensor]] = []
        start = 0
        while start < len(by_length):
            stop = start + 1
            while stop < len(by_length):  # lengths ascend: the candidate row is the longest of the chunk
                if (stop + 1 - start) * trials * lengths[by_length[stop]] > tokens_at_once:
                    break
                stop += 1
            rows = by_length[start:stop]
            batch = pad(split, rows, pad_id)
            inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
            if with_types and batch.token_type_ids is not None:
                inputs["token_type_ids"] = batch.token_type_ids
            self.chunks.append({k: torch.from_numpy(v).to(device) for k, v in inputs.items()})
            start = stop

    def unsorted(self, values: np.ndarray) -> np.ndarray:
        """Values in the order of the chunks (..., n, C), put back into the order of the split."""
        result = np.empty_like(values)
        result[..., self.order, :] = values
        return result
