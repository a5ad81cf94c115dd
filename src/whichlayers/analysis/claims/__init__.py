"""The claims of the papers, each as a test that a study passes, fails or leaves open.

    for claim in study_claims(folder):
        print(claim.id, claim.verdict, claim.effect, claim.low, claim.high, claim.p)

T1 to T7 are from Tamkin et al. 2020, S1 and S2 from Singh & Giovanardi, D1 to D4 from Durrani et al. 2021; the words
are ours.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pandas as pd

from whichlayers.analysis.claims.base import FAILS, HOLDS, NOT_ASKED, OPEN, Claim, Limits, Test
from whichlayers.analysis.claims.durrani2021 import d1, d2, d3, d4
from whichlayers.analysis.claims.singh2020 import s1, s2
from whichlayers.analysis.claims.tamkin2020_data_size import t1, t2
from whichlayers.analysis.claims.tamkin2020_layers import t3, t5
from whichlayers.analysis.claims.tamkin2020_permutation import t4
from whichlayers.analysis.claims.tamkin2020_settings import t6, t7
from whichlayers.results.frames import finished, load_change_of_whole_models, load_points

__all__ = [
    "FAILS", "HOLDS", "NOT_ASKED", "OPEN", "Claim", "Limits", "Test", "as_records", "as_table", "claims",
    "study_claims",
]  # fmt: skip


def claims(
    points: pd.DataFrame, weights: pd.DataFrame | None = None, limits: Limits | None = None
) -> list[Claim]:
    """Every claim, from finished points; `weights` as `load_change_of_whole_models` gives them."""
    limits = limits or Limits()
    weights = (
        pd.DataFrame(columns=["trial_id", "name", "layer", "kind", "value"]) if weights is None else weights
    )
    found = [test(points, limits) for test in (t1, t2, t3, t4, t5, t6, t7)]
    found += [test(points, weights, limits) for test in (s1, s2)]
    return found + [test(points, limits) for test in (d1, d2, d3, d4)]


def study_claims(folder: Path, limits: Limits | None = None) -> list[Claim]:
    return claims(finished(load_points(folder)), load_change_of_whole_models(folder), limits)


def as_records(found: list[Claim]) -> list[dict[str, Any]]:
    """For JSON: what is not known is None."""
    return [_known(dataclasses.asdict(claim)) for claim in found]


def as_table(found: list[Claim]) -> pd.DataFrame:
    """A row a test, with the verdict of its claim; a claim that was not asked for has one row."""
    rows = []
    for claim in found:
        for test in claim.tests or (None,):
            own = {} if test is None else dataclasses.asdict(test)
            rows.append({"claim": claim.id, "claim_verdict": claim.verdict, **own})
    names = ["claim", "claim_verdict", *(field.name for field in dataclasses.fields(Test))]
    table = pd.DataFrame(rows, columns=names)
    table["needed"] = table["needed"].astype("Int64")
    table["n"] = table["n"].astype("Int64")
    return table


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_known(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
