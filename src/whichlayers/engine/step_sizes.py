"""The sizes that the steps of a stack are padded to, so that few sizes are compiled and captured as CUDA graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np

from whichlayers.engine.compilation import COMPILE_SECONDS
from whichlayers.engine.dataloader import LENGTH_STEP, TrainDataLoader

CAPTURE_SECONDS = 0.5  # to capture a size
FLOP_PER_WEIGHT = 6  # per token: forward, and the two matrix products of backward
FLOP_PER_SECOND = 250e12  # of a large GPU in a training step


def plan_sizes(
    loader: TrainDataLoader,
    trials: int,
    layer_weights: int,
    size_in_tokens: bool,
    compiled: bool,
    similar_stacks: int,
) -> tuple[np.ndarray, set[int]]:
    """The sizes that the steps of a stack are padded to, and the sizes that this process has compiled already.

    Args:
        loader: The training batches of the stack.
        trials: Number of trials.
        layer_weights: Number of trained weights in the layers of all trials.
        size_in_tokens: Whether sizes are tokens of a trial, see `StackTrainer`.
        compiled: Whether its layers are compiled.
        similar_stacks: Number of stacks of the same shape.

    Returns:
        (steps,) sizes, and the known sizes of this shape, a set that the caller may add to.
    """
    key = (layer_weights, trials, loader.batch_size, size_in_tokens)
    known = _compiled_sizes.setdefault(key, set())
    tokens = 1 if size_in_tokens else loader.batch_size  # of a trial, for each unit of size
    seconds = FLOP_PER_WEIGHT * layer_weights * tokens / FLOP_PER_SECOND
    compile_seconds = COMPILE_SECONDS / similar_stacks if compiled else 0.0
    chosen = choose_sizes(loader.step_sizes(size_in_tokens), seconds, known, compile_seconds)
    return chosen if size_in_tokens else chosen.clip(max=loader.width), known


# sizes of steps for which compiled code exists, by (weights in layers, trials, batch size, size_in_tokens)
_compiled_sizes: dict[tuple[int, int, int, bool], set[int]] = {}


def choose_sizes(
    sizes: np.ndarray,
    seconds_per_unit: float,
    known: Collection[int] = (),
    compile_seconds: float = COMPILE_SECONDS,
) -> np.ndarray:
    """Choose the sizes to pad to such that padding, compilation and capture take the least time in total.

    Args:
        sizes: (steps,) size of each step: tokens of a trial, or the longest sequence.
        seconds_per_unit: Time that a step takes longer if its size grows by 1.
        known: Sizes that are compiled already.
        compile_seconds: Time to compile a size that is not known; 0 if nothing is compiled.

    Returns:
        (steps,) size to pad each step to, a multiple of LENGTH_STEP.
    """
    rounded = -(-sizes // LENGTH_STEP) * LENGTH_STEP
    counts = Counter(rounded.tolist())
    candidates = sorted(counts)
    # dynamic program; cost[j]: all steps up to the j-th size, if that is the largest of the chosen sizes
    cost, previous = [0.0], [0]
    for j, largest in enumerate(candidates, 1):
        fixed = CAPTURE_SECONDS + (0 if largest in known else compile_seconds)
        options = [
            cost[i] + fixed + seconds_per_unit * sum(counts[n] * (largest - n) for n in candidates[i:j])
            for i in range(j)
        ]
        cost.append(min(options))
        previous.append(options.index(min(options)))
    chosen, j = list[int](), len(candidates)
    while j:
        chosen.append(candidates[j - 1])
        j = previous[j]
    return np.array(chosen[::-1])[np.searchsorted(chosen[::-1], rounded)]
