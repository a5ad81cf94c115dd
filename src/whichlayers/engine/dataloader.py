"""Data loaders of a stack, with all examples kept on the device.

Everything a step needs is prepared before the first one. A batch is looked up by the step number, which is also kept
on the device, so that a captured CUDA graph needs nothing from the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whichlayers.data.batches import epoch_order, pad, subset
from whichlayers.data.tokenize import TokenizedSplit, TokenizedTask
from whichlayers.trial import Trial

LENGTH_STEP = 16  # sequence lengths and tokens of captured steps are multiples of this


@dataclass(frozen=True)
class StackBatch:
    """One batch of every trial; the rows of trial t are t*B to (t + 1)*B."""

    inputs: dict[str, Tensor]  # input_ids, attention_mask and possibly token_type_ids: (T*B, L)
    labels: Tensor  # (T, B)
    weights: Tensor  # (T, B) float: 1 for an example, 0 for the padding of an epoch's last batch
    rows: Tensor  # (T*B,) row of each example in the tables of the data loader


class TrainDataLoader:
    """The training batches of all trials of a stack.

    Args:
        trials: The trials of the stack.
        data: The tokenized task.
        device: Where to keep the examples.
        with_token_types: Whether the model takes token type ids.
        max_length: Longest input of the model in tokens; None: no limit.

    Attributes:
        width: Length that the longest example is padded to.
        batch_size: Examples of one trial in a batch (B).
        steps: Number of steps of all epochs.
        step_lengths: (steps,) numpy array, longest sequence of each step over all trials.
        step_tokens: (steps,) numpy array, most tokens of any trial in each step.
        batch_rows: (T, steps, B) int32, rows of the tables below; -1 pads the last batch of an epoch.
        input_ids: (N, longest) int32, the N examples that any trial uses.
        row_lengths: (N,) int32, number of tokens of each example.
        token_type_ids: (N, longest) uint8, or None.
        labels: (N,) int64 classes or float32 values.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        data: TokenizedTask,
        device: torch.device,
        with_token_types: bool,
        max_length: int | None = None,
    ):
        first, self.max_length = trials[0], max_length
        self.batch_size, self.steps = first.training.batch_size, first.steps
        rows = _rows_of_steps(trials, len(data.train))  # (T, steps, B)
        used, index = np.unique(rows, return_inverse=True)
        shift = int(used[0] == -1)  # -1 sorts first and is not a row of the tables
        used = used[shift:]
        longest = int(np.diff(data.train.offsets)[used].max())
        self.width = self.padded_length(longest)
        table = pad(data.train, used, data.pad_id, self.width)
        lengths = table.attention_mask.sum(1)  # (N,)
        index = index.reshape(rows.shape) - shift
        # (T, steps, B); an incomplete batch is filled with the first example
        by_step = lengths[index.clip(0)]
        self.step_lengths: np.ndarray = by_step.max((0, 2))
        self.step_tokens: np.ndarray = by_step.sum(2).max(0)

        def to_device(array: np.ndarray, dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(array).to(device=device, dtype=dtype)

        self.batch_rows = to_device(index, torch.int32)
        self.input_ids = to_device(table.input_ids, torch.int32)
        self.row_lengths = to_device(lengths, torch.int32)
        self.token_type_ids = None
        if with_token_types and table.token_type_ids is not None:
            self.token_type_ids = to_device(table.token_type_ids, torch.uint8)
        self.labels = to_device(table.labels, torch.float32 if data.kind == "regression" else torch.int64)

    def padded_length(self, length: int) -> int:
        """The next multiple of LENGTH_STEP, or the longest input of the model if that is shorter."""
        rounded = round_up(length)
        return rounded if self.max_length is None else min(rounded, max(length, self.max_length))

    def step_sizes(self, in_tokens: bool) -> np.ndarray:
        """(steps,) size of each step: most tokens of any trial, or the longest sequence."""
        return self.step_tokens if in_tokens else self.step_lengths

    def batch(self, step: Tensor, length: int) -> StackBatch:
        """The batch of step number `step`, a 0-dimensional tensor on the device, padded to `length`."""
        rows = self.batch_rows.index_select(1, step.view(1)).squeeze(1)  # (T, B)
        real, flat = rows >= 0, rows.clamp(min=0).flatten().long()
        inputs = self.inputs(flat, length)
        return StackBatch(inputs, self.labels[flat].view(rows.shape), real.float(), flat)

    def inputs(self, rows: Tensor, length: int) -> dict[str, Tensor]:
        """The model's inputs (n, length) for (n,) rows of the tables."""
        inputs = {
            "input_ids": self.input_ids[rows, :length].long(),
            "attention_mask": (
                torch.arange(length, device=rows.device, dtype=torch.int32) < self.row_lengths[rows][:, None]
            ).long(),
        }
        if self.token_type_ids is not None:
            inputs["token_type_ids"] = self.token_type_ids[rows, :length].long()
        return inputs


def _rows_of_steps(trials: Sequence[Trial], n_rows: int) -> np.ndarray:
    """(T, steps, B) row of the training set of every example of every step; -1 pads the last batch of an epoch."""
    first = trials[0]
    size = first.steps_per_epoch * first.training.batch_size
    rows = np.full((len(trials), first.training.epochs, size), -1, np.int64)
    first_of_seeds: dict[tuple[int, int], int] = {}  # trials with the same seeds see the same rows
    for t, trial in enumerate(trials):
        subset_seed, order_seed = trial.seed_of("subset"), trial.seed_of("order")
        if (other := first_of_seeds.setdefault((subset_seed, order_seed), t)) != t:
            rows[t] = rows[other]
            continue
        chosen = subset(n_rows, trial.train_size, subset_seed)
        for epoch in range(trial.training.epochs):
            rows[t, epoch, : len(chosen)] = chosen[epoch_order(len(chosen), order_seed, epoch)]
    return rows.reshape(len(trials), first.steps, first.training.batch_size)


def used_token_ids(trials: Sequence[Trial], data: TokenizedTask) -> list[np.ndarray]:
    """For each trial, the token ids that occur in its training subset, and the padding token."""
    by_seed: dict[int, np.ndarray] = {}
    seeds = [trial.seed_of("subset") for trial in trials]
    for trial, seed in zip(trials, seeds, strict=True):
        if seed not in by_seed:
            chosen = pad(data.train, subset(len(data.train), trial.train_size, seed), data.pad_id)
            by_seed[seed] = np.union1d(chosen.input_ids, [data.pad_id])
    return [by_seed[seed] for seed in seeds]


def most_batch_tokens(lengths: np.ndarray, batch_size: int, draws: int = 1 << 16) -> int:
    """Tokens of the largest of many random batches, rounded up: the size of a packed step, for any stack.

    Args:
        lengths: (n,) number of tokens of each training example.
        batch_size: Examples in a batch.
        draws: Number of random batches.
    """
    rows = np.random.default_rng(0).integers(0, len(lengths), (draws, batch_size))
    return round_up(int(lengths[rows].sum(1).max()))


def round_up(size: int) -> int:
    """The next multiple of LENGTH_STEP."""
    return -(-size // LENGTH_STEP) * LENGTH_STEP


@dataclass(frozen=True)
class EvalChunk:
    """Rows of a dev set that every trial evaluates at once."""

    inputs: dict[str, Tensor]  # input_ids, attention_mask and possibly token_type_ids: (rows, L)
    tokens: int  # number of tokens without padding


class EvalDataLoader:
    """A dev set, sorted by length and cut into chunks.

    Args:
        split: The dev set.
        pad_id: Id of the padding token.
        trials: Number of trials, all of which see every chunk.
        device: Where to keep the chunks.
        with_token_types: Whether the model takes token type ids.
        max_tokens: Maximum number of tokens in a chunk, summed over trials.

    Attributes:
        split: The dev set.
        order: (n,) numpy array, row of the dev set for each row of the concatenated chunks.
        chunks: The chunks, on the device.
    """

    def __init__(
        self,
        split: TokenizedSplit,
        pad_id: int,
        trials: int,
        device: torch.device,
        with_token_types: bool,
        max_tokens: int,
    ):
        lengths = np.diff(split.offsets)
        by_length = np.argsort(lengths, kind="stable")
        self.split, self.order = split, by_length
        self.chunks: list[EvalChunk] = []
        start = 0
        while start < len(by_length):
            stop = start + 1
            while stop < len(by_length):  # rows are sorted: the next row is the longest of the chunk
                if (stop + 1 - start) * trials * lengths[by_length[stop]] > max_tokens:
                    break
                stop += 1
            rows = by_length[start:stop]
            batch = pad(split, rows, pad_id)
            inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
            if with_token_types and batch.token_type_ids is not None:
                inputs["token_type_ids"] = batch.token_type_ids
            on_device = {k: torch.from_numpy(v).to(device) for k, v in inputs.items()}
            self.chunks.append(EvalChunk(on_device, int(lengths[rows].sum())))
            start = stop

    def unsort(self, values: np.ndarray) -> np.ndarray:
        """Bring values (..., n, C) from the order of the chunks into the order of the split."""
        result = np.empty_like(values)
        result[..., self.order, :] = values
        return result
