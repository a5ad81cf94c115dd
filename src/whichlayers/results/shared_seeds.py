"""Seeds that trials of a study have in common: which trials are independent, and what their intervals do not cover.

    points = load_points(folder)
    independent_trials(points)  # the rows of trials of which no two share the seed of a component
    seed_notes(points)  # sentences for whoever reads intervals of this study

With `vary_apart`, trials share seeds of single components. Their scores are correlated: with 25 trials, a 95% t
interval of a mean covers it in 59 to 74% of simulated studies if single components contribute half of the variance or
more. Of the 25 trials of a round, five share no seed. The interval of these covers the mean in 95%; it is hardly wider
than one of all trials would have to be, since 25 trials have only five seeds of each component.

With `vary`, components that are not in the list have one seed in all trials. Trials are then independent, but differ in
the listed components only.

The seeds are read from the results, so that this works for any study folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from whichlayers.text import counted, join_list
from whichlayers.trial import COMPONENTS, Component

# points that differ in their seed alone: whether a component has an effect is the same for all of them
CELL = [
    *(
        "experiment",
        "condition",
        "x",
        "model_fingerprint",
        "task_fingerprint",
        "train_size",
        "head",
        "training",
    ),
    *("recipe", "keep_layer_norm", "reinit_pooler", "reinit_lr_factor", "variant"),
]
NAMES: Final[dict[Component, str]] = {
    "subset": "training subset",
    "order": "order of the examples",
    "init": "re-initialized weights",
    "head": "initial head",
    "dropout": "dropout masks",
}


@dataclass(frozen=True)
class SeedUse:
    """How the trials of a study use seeds."""

    seeds: tuple[int, ...]  # of the trials: `seed` of the study, `seed` + 1 ...
    independent: tuple[int, ...]  # of trials of which no two share the seed of a component that varies
    fixed: tuple[Component, ...]  # components that have the same seed in all trials
    varied: tuple[Component, ...]  # the others

    @property
    def shared(self) -> bool:
        """Whether trials share seeds of components that vary, so that not all of them are independent."""
        return len(self.independent) < len(self.seeds)

    @property
    def notes(self) -> list[str]:
        """What whoever reads intervals and tests has to know, as sentences; empty for usual studies."""
        found = []
        if self.shared:
            trials = counted(len(self.seeds), "trial")
            found.append(
                f"The trials of this study share seeds (vary_apart), so that intervals of all trials would be too "
                f"narrow. Means, intervals and tests are those of {len(self.independent)} of {trials} per point, of "
                "which no two share a seed; only the variance components use all. For narrower intervals, run a study "
                "with vary_apart = false."
            )
        if self.fixed:
            same, differ = (join_list(NAMES[c] for c in one) for one in (self.fixed, self.varied))
            found.append(
                f"All trials have the same {same} (vary). Intervals and tests cover the variation by {differ} only: as "
                f"statements about another {join_list([NAMES[c] for c in self.fixed], 'or')}, intervals are too narrow "
                "and p values too small. To cover it, run a study without vary."
            )
        return found


def seed_use(points: pd.DataFrame) -> SeedUse:
    """How the trials of these points use seeds.

    Args:
        points: Points of one study, as from `load_points` or `finished`.
    """
    seeds = tuple(sorted(int(seed) for seed in points["seed"].unique()))
    columns: dict[Component, str] = {c: f"seed_{c}" for c in COMPONENTS if f"seed_{c}" in points}
    own = points[list(columns.values())].ne(points["seed"], axis=0)
    if not own.any(axis=None):
        return SeedUse(seeds, seeds, (), COMPONENTS)
    cells = points.groupby([name for name in CELL if name in points], dropna=False, sort=False)
    number = cells.ngroup()
    fixed, tables = [], {}
    for component, column in columns.items():
        # where a component has no effect, results have the seed of the trial
        has_effect = own[column].groupby(number).transform("any") & (cells["seed"].transform("nunique") > 1)
        varies = cells[column].transform("nunique") > 1
        if (has_effect & varies).any():
            by_seed = points[own[column]].drop_duplicates("seed").set_index("seed")[column]
            tables[component] = {seed: int(by_seed.get(seed, seed)) for seed in seeds}
        elif has_effect.any():
            fixed.append(component)
    independent, taken = [], set[tuple[Component, int]]()
    for seed in seeds:
        mine = {(component, table[seed]) for component, table in tables.items()}
        if taken.isdisjoint(mine):
            independent.append(seed)
            taken |= mine
    varied = tuple(component for component in COMPONENTS if component not in fixed)
    return SeedUse(seeds, tuple(independent), tuple(fixed), varied)


def independent_trials(points: pd.DataFrame) -> pd.DataFrame:
    """The points of trials of which no two share the seed of a component that varies; all points of usual studies.

    The choice depends on the seeds alone, and is the same at every point, so that points stay paired.
    """
    use = seed_use(points)
    return points[points["seed"].isin(use.independent)] if use.shared else points


def seed_notes(points: pd.DataFrame) -> list[str]:
    """`SeedUse.notes` of the finished trials of these points; none without two finished trials."""
    done = points[points["status"] == "done"] if "status" in points else points
    return [] if done.empty else seed_use(done).notes


def named_notes(notes: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Notes of several studies, each (name, notes), with the names of the studies that they are about."""
    by_text: dict[str, list[str]] = {}
    for name, of_study in notes:
        for text in of_study:
            by_text.setdefault(text, []).append(name)
    return [f"{join_list(names)}: {text}" for text, names in by_text.items()]
