"""The permutation experiment: shuffle the pretrained layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field

from whichlayers.config.sections import MAX_COUNT, CountPerSize, PerSize
from whichlayers.config.validators import at_most
from whichlayers.experiments.base import ReinitExperiment, Variant, baselines, none_if_identity
from whichlayers.experiments.display import Display

MIN_PERMUTATIONS = 3  # a correlation over fewer has no p value


class Permutation(ReinitExperiment):
    """Shuffle the pretrained layers. Only the baseline without pretrained layers is re-initialized."""

    kind: Literal["permutation"] = "permutation"
    displays = (
        Display(
            name="permutation",
            title="Layer permutations",
            x_label="training examples",
            description="The pretrained layers are put in random order and the whole model is finetuned.",
            plot="permutations",
            x_column="permutation no.",
        ),
    )
    permutations: Annotated[
        int, Field(strict=True, ge=MIN_PERMUTATIONS), AfterValidator(at_most(MAX_COUNT))
    ] = Field(
        default=10,
        description="Number of permutations; tasks are correlated over them. The nth permutation is the same for every "
        "task and study.",
    )
    baseline_trials: CountPerSize | None = Field(
        default=None,
        description="Trials of each of the two baselines. Default: as many as of each permutation.",
        examples=[3],
    )

    def variants(self, depth: int) -> Iterator[Variant]:
        yield from baselines(depth)
        for n in range(1, self.permutations + 1):
            order = tuple(int(i) + 1 for i in np.random.RandomState(n).permutation(depth))
            yield Variant("permuted", n, order=none_if_identity(order, depth))

    def trials_of(self, variant: Variant) -> PerSize | None:
        return (self.baseline_trials if variant.is_baseline else None) or self.trials

    def summary(self) -> str:
        return f"shuffle the pretrained layers, in {self.permutations} random orders"
