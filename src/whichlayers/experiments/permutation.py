"""Shuffle the pretrained layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from whichlayers.config.sections import CountPerSize
from whichlayers.experiments.base import Arrangement, ReinitExperiment, baselines, unless_identity

LEAST_ORDERS = 3  # a correlation over fewer has no p value


class Permutation(ReinitExperiment):
    """Shuffle the pretrained layers; nothing is re-initialised but in a baseline."""

    kind: Literal["permutation"] = "permutation"
    permutations: Annotated[int, Field(strict=True, ge=LEAST_ORDERS)] = Field(
        default=10,
        description="How many; tasks are correlated over them. The nth is the same for every task and study.",
    )
    baseline_trials: CountPerSize | None = Field(
        default=None,
        description="Trials of the two baselines, if not as many as of each permutation.",
        examples=[3],
    )

    def arrangements(self, depth: int) -> Iterator[Arrangement]:
        yield from baselines(depth)
        for n in range(1, self.permutations + 1):
            order = tuple(int(i) + 1 for i in np.random.RandomState(n).permutation(depth))
            yield Arrangement("permuted", n, order=unless_identity(order, depth))

    def words(self) -> str:
        return f"shuffle the pretrained layers, in {self.permutations} random orders"
