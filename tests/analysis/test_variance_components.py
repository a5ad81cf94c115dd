"""Variance components against ANOVA by hand, known truths in simulations, and their intervals by coverage."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fake_facts import a_study
from synthetic_results import incremental, write_results

from whichlayers.analysis.variance_components import (
    COLUMNS,
    RESIDUAL,
    minque_forms,
    variance_components,
    variance_table,
)
from whichlayers.results.frames import finished, load_points
from whichlayers.study.expand import component_seeds
from whichlayers.trial import COMPONENTS

SDS = {"subset": 1.0, "order": 0.5, "init": 0.7, "head": 0.0, "dropout": 0.3, RESIDUAL: 0.8}


def design(trials: int) -> dict[str, np.ndarray]:
    """Component -> (trials,) its seeds in a study with `vary_apart`."""
    study = a_study(vary_apart=True)
    own = [dict(component_seeds(study, i)) for i in range(trials)]
    return {c: np.array([own[i].get(c, i) for i in range(trials)]) for c in COMPONENTS}


def draw(seeds: dict[str, np.ndarray], random: np.random.Generator) -> np.ndarray:
    """Scores with the standard deviations SDS and mean 70."""
    values = 70 + random.normal(0, SDS[RESIDUAL], len(seeds["subset"]))
    for component, levels in seeds.items():
        values += SDS[component] * random.normal(size=levels.max() + 1)[levels]
    return values


def test_in_a_balanced_design_the_estimates_are_those_of_anova():
    seeds, values = design(25), draw(design(25), np.random.default_rng(3))
    sums = {
        c: 5 * sum((values[s == level].mean() - values.mean()) ** 2 for level in range(5))
        for c, s in seeds.items()
    }
    rest = (((values - values.mean()) ** 2).sum() - sum(sums.values())) / 4  # 24 - 5 * 4 degrees of freedom
    found = {part.component: part for part in variance_components(values, seeds, 50)}
    assert list(found) == [*COMPONENTS, RESIDUAL]
    expected = {c: max(0.0, (total / 4 - rest) / 5) for c, total in sums.items()} | {RESIDUAL: rest}
    for name, part in found.items():
        assert part.variance == pytest.approx(expected[name], abs=1e-9)
        assert part.share == pytest.approx(expected[name] / sum(expected.values()), abs=1e-9)
        assert 0 <= part.low <= part.variance <= part.high
        assert part.seeds == (25 if name == RESIDUAL else 5)


@pytest.mark.parametrize("trials", [10, 25, 32, 50])
def test_the_estimates_are_unbiased_for_any_number_of_trials(trials):
    """Exactly: the expectation of y'Ay is tr(A V) for every component, and 0 for the mean."""
    same = [np.equal.outer(s, s).astype(float) for s in design(trials).values()]
    covariances = [*same, np.eye(trials)]
    forms = minque_forms(covariances)
    assert np.einsum("aij,bji->ab", forms, np.array(covariances)) == pytest.approx(np.eye(6), abs=1e-9)
    assert forms.sum((1, 2)) == pytest.approx(np.zeros(6), abs=1e-9)


def test_intervals_cover_the_truth_and_a_component_without_effect():
    seeds, random, reps = design(25), np.random.default_rng(1), 100
    covered = dict.fromkeys(SDS, 0)
    for _ in range(reps):
        for part in variance_components(draw(seeds, random), seeds, 200):
            assert 0 <= part.low <= part.high
            covered[part.component] += part.low <= SDS[part.component] ** 2 <= part.high
    assert all(0.87 * reps <= count for count in covered.values()), covered  # standard error: 2 of 100
    assert 0.91 <= np.mean(list(covered.values())) / reps <= 0.985, covered


def test_components_that_cannot_be_told_apart():
    values = np.random.default_rng(0).normal(size=12)
    number = np.arange(12)
    assert variance_components(values, {"subset": number, "init": number}) is None  # one seed per trial
    assert variance_components(values, {"subset": number // 2, "init": number // 2}) is None
    found = variance_components(values, {"subset": number // 2, "init": number, "head": number * 0}, 50)
    assert [part.component for part in found] == ["subset", RESIDUAL]


def test_the_table_of_a_study(tmp_path):
    seeds = design(25)

    def with_seeds(point):
        own = tuple((c, int(seeds[c][point.trial.seed])) for c in COMPONENTS)
        return dataclasses.replace(point, trial=dataclasses.replace(point.trial, seeds=own))

    points = incremental(trials=25, ks=(0, 3))
    values = draw(seeds, np.random.default_rng(0)) / 100
    for name, chosen in (("plain", points), ("apart", [with_seeds(p) for p in points])):
        write_results(tmp_path / name, chosen, lambda p: float(values[p.trial.seed]))
    plain, apart = (
        variance_table(finished(load_points(tmp_path / name), shared_seeds=True))
        for name in ("plain", "apart")
    )
    assert list(plain.columns) == list(apart.columns) == COLUMNS
    assert plain.empty
    assert len(apart) == 2 * 6
    expected = variance_components(values, seeds)
    for _, rows in apart.groupby("x"):
        assert list(rows["component"]) == [part.component for part in expected]
        assert list(rows["variance"]) == pytest.approx([part.variance for part in expected])
        assert (rows["trials"] == 25).all()


def test_shares_do_not_depend_on_the_unit_and_equal_scores_have_none():
    seeds, values = design(25), draw(design(25), np.random.default_rng(4))
    points, fractions = (variance_components(v, seeds, 20) for v in (values, values / 100))
    for part, scaled in zip(points, fractions, strict=True):
        assert scaled.share == pytest.approx(part.share)
        assert scaled.variance == pytest.approx(part.variance / 1e4)
    assert sum(part.share for part in points) == pytest.approx(1.0)
    assert all(np.isnan(part.share) for part in variance_components(np.zeros(25), seeds, 20))
