"""The claims of the papers, tested on the results of a study.

    for claim in study_claims(folder):
        print(claim.id, claim.verdict, claim.effect, claim.low, claim.high, claim.p)

T1 to T10 are claims of Tamkin et al. 2020, S1 to S4 of Singh & Giovanardi 2020, D1 to D4 of Durrani et al. 2021,
paraphrased. Z1 to Z3 (Zhang et al. 2021), L1 (Lee et al. 2019) and P1 (Sajjad et al. 2023) are listed only if the
study has data for them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pandas as pd

from whichlayers.analysis.claims.base import (
    BELOW_MARGIN,
    FAILS,
    HOLDS,
    NOT_TESTED,
    UNDECIDED,
    Claim,
    ClaimTest,
    ClaimThresholds,
    Verdict,
    decisive_test,
    not_tested,
)
from whichlayers.analysis.claims.durrani2021 import D1, D2, D3, D4, d1, d2, d3, d4
from whichlayers.analysis.claims.finetuning import L1, P1, Z1, Z2, Z3, finetuning_claims
from whichlayers.analysis.claims.singh2020 import S1, S2, S3, S4, s1, s2, s3, s4
from whichlayers.analysis.claims.tamkin2020_layers import T3, T4, T5, T8, t3, t4, t5, t8
from whichlayers.analysis.claims.tamkin2020_sizes import T1, T2, t1, t2
from whichlayers.analysis.claims.tamkin2020_training import T6, T7, T9, T10, t6, t7, t9, t10
from whichlayers.analysis.guessing import judged_points, with_exclusions
from whichlayers.analysis.verdicts import CLAIM_VERDICTS, EARLIER_WORDS, NO_SUCH_MODEL
from whichlayers.errors import WhichlayersError
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import finished, load_baseline_weight_change, load_points

__all__ = [
    "BELOW_MARGIN", "FAILS", "HOLDS", "NOT_TESTED", "UNDECIDED", "Claim", "ClaimTest",
    "ClaimThresholds", "as_records", "as_table", "evaluate_claims", "from_table", "study_claims",
]  # fmt: skip

CLAIMS = {
    "T1": T1, "T2": T2, "T3": T3, "T4": T4, "T5": T5, "T6": T6, "T7": T7, "T8": T8, "T9": T9, "T10": T10,
    "S1": S1, "S2": S2, "S3": S3, "S4": S4, "D1": D1, "D2": D2, "D3": D3, "D4": D4,
    "Z1": Z1, "Z2": Z2, "Z3": Z3, "L1": L1, "P1": P1,
}  # fmt: skip
TEST_COLUMNS = [field.name for field in dataclasses.fields(ClaimTest) if field.name != "power"]


def evaluate_claims(
    points: pd.DataFrame, weights: pd.DataFrame | None = None, thresholds: ClaimThresholds | None = None
) -> list[Claim]:
    """Evaluate all claims. They are judged where results are shown to be better than guessing.

    Args:
        points: Finished points, as from `finished(load_points(folder))`.
        weights: Weight change, as from `load_baseline_weight_change`; without it, S1 and S2 are not tested.
        thresholds: Significance level and margins.
    """
    thresholds = thresholds or ClaimThresholds()
    if weights is None:
        weights = pd.DataFrame(columns=["trial_id", "name", "layer", "kind", "value"])
    kept, excluded = judged_points(points)
    judged = _evaluate(kept, weights, thresholds)
    if not excluded:
        return judged
    everywhere, found = _evaluate(points, weights, thresholds), {claim.id: claim for claim in judged}
    # some claims are left out if there are no data for them
    judged = [found.get(claim.id) or not_tested(claim.id, claim.text, "") for claim in everywhere]
    return with_exclusions(judged, everywhere, excluded, points)


def _evaluate(points: pd.DataFrame, weights: pd.DataFrame, thresholds: ClaimThresholds) -> list[Claim]:
    found = [claim(points, thresholds) for claim in (t1, t2, t3, t4, t5, t6, t7, t8, t9, t10)]
    found += [claim(points, weights, thresholds) for claim in (s1, s2)]
    found += [claim(points, thresholds) for claim in (s3, s4, d1, d2, d3, d4)]
    return found + finetuning_claims(points, thresholds)


def study_claims(folder: Path, thresholds: ClaimThresholds | None = None) -> list[Claim]:
    """Evaluate all claims on the results in a study folder."""
    return evaluate_claims(finished(load_points(folder)), load_baseline_weight_change(folder), thresholds)


def as_records(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Claims as dicts for JSON; NaN and infinity become None."""
    records = []
    for claim in claims:
        fields = {f.name: getattr(claim, f.name) for f in dataclasses.fields(claim)}
        records.append(_finite(fields | {"tests": [_columns(test) for test in claim.tests]}))
    return records


def as_table(claims: Sequence[Claim]) -> pd.DataFrame:
    """Claims as the table in claims.csv: one row per test, and one row per claim that was not tested.

    A model that a claim is about and that the study does not have is a row without numbers.

    Returns:
        claim, claim_verdict, and `TEST_COLUMNS`.
    """
    rows = []
    for claim in claims:
        same = {"claim": claim.id, "claim_verdict": claim.verdict}
        tests = [same | _columns(test) for test in claim.tests]
        tests += [
            same | {"about": NO_SUCH_MODEL, "model": model, "verdict": NOT_TESTED}
            for model in claim.not_testable
        ]
        rows += tests or [same]
    names = ["claim", "claim_verdict", *TEST_COLUMNS]
    table = pd.DataFrame(rows, columns=names)
    table["needed"] = table["needed"].astype("Int64")
    table["n"] = table["n"].astype("Int64")
    return table


def from_table(table: pd.DataFrame) -> list[Claim]:
    """Claims from the table in claims.csv, without their details.

    Args:
        table: As from `as_table`, also after writing and reading it as CSV.
    """
    missing = [name for name in ("claim", "claim_verdict", *TEST_COLUMNS) if name not in table]
    if missing:
        raise WhichlayersError(
            f"the table of claims has no column {missing[0]}: write it again with `whichlayers report`, which needs "
            "results.db, or `whichlayers claims --format csv`"
        )
    table = table.replace({"claim_verdict": EARLIER_WORDS, "verdict": EARLIER_WORDS})
    if unknown := sorted({*table["claim_verdict"], *table["verdict"].dropna()} - set(CLAIM_VERDICTS)):
        raise WhichlayersError(
            f"the table of claims has the verdict {unknown[0]!r}; known verdicts: {', '.join(CLAIM_VERDICTS)}"
        )
    return [_read_claim(str(id), rows) for (id,), rows in each_group(table, ["claim"])]


def _read_claim(id: str, rows: pd.DataFrame) -> Claim:
    """One claim from its rows of the table."""
    verdict, text = cast(Verdict, rows["claim_verdict"].iloc[0]), CLAIMS.get(id, id)
    not_testable = tuple(rows.loc[rows["about"] == NO_SUCH_MODEL, "model"])
    tests = tuple(
        ClaimTest(**{name: _read_field(name, row[name]) for name in TEST_COLUMNS})
        for row in rows[rows["about"].notna() & (rows["about"] != NO_SUCH_MODEL)].to_dict("records")
    )
    if not tests:
        return dataclasses.replace(not_tested(id, text, ""), not_testable=not_testable)
    one = decisive_test(tests, verdict, ClaimThresholds().alpha)
    return Claim(
        id,
        text,
        *(one.effect, one.low, one.high, one.p),
        verdict=verdict,
        needed=None,
        details="",
        unit=one.unit,
        level=one.level,
        about=one.about,
        needs=one.needs,
        tests=tests,
        not_testable=not_testable,
    )


def _read_field(name: str, value: Any) -> Any:
    """A field of a test from a table, in which missing text and missing numbers are NaN."""
    if name in ("about", "unit", "note", "needs", "verdict", "model", "task"):
        return "" if pd.isna(value) else str(value)
    if name in ("n", "needed"):
        return None if pd.isna(value) else int(value)
    return float(value)


def _columns(test: ClaimTest) -> dict[str, Any]:
    return {name: getattr(test, name) for name in TEST_COLUMNS}


def _finite(value: Any) -> Any:
    """`value` with every NaN or infinity, also inside dicts and lists, replaced by None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
