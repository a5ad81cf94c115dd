"""Recompute claims.csv and summary.csv of the studies in this folder from their results, and claims.md from all.

    python results/recompute.py           # write them
    python results/recompute.py --check   # compare them with what is there; the status is 1 if they differ

results.csv.gz has all scores, weight_change.csv.gz the weight changes that the claims S1 and S2 are about. Studies
whose weight changes were not kept have their tests recomputed from the mean log ratio, its interval and the number of
trials in claims.csv, which determine a t test; where a study froze layers or trained adapters, such tests may include
these trials, and are left out. claims.md is the table of all claims over models and tasks.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from whichlayers.analysis.claims import Claim, ClaimThresholds, as_table, evaluate_claims
from whichlayers.analysis.claims.base import evaluate_claim
from whichlayers.analysis.claims.singh2020 import REMARK, S1, S2, is_s1_task, ratio_test
from whichlayers.analysis.claims.subjects import StudyClaims, SubjectClaim, claims_by_subject
from whichlayers.analysis.guessing import PARTLY_TRAINED
from whichlayers.report.subject_claims import subjects_markdown
from whichlayers.report.tables import summary
from whichlayers.results.frames import SEED_COLUMNS, finished

RESULTS = Path(__file__).parent
CLAIMS_PAGE = RESULTS / "claims.md"
PAGE = """# The papers' claims on other models

Every claim on every model and task of the studies in this folder, with the decisive test: its effect, the 95% interval
(90% for equivalence tests) and the number of trials or permutations. Written by `python results/recompute.py`;
[docs/claims.md](../docs/claims.md) has the claims in full and the rules for verdicts,
[docs/reproduction.md](../docs/reproduction.md) the discussion.

{table}"""
# of studies whose results were exported without the family
FAMILIES = {"carryover-bert-small": "bert", "carryover-bert-tiny": "bert", "all-mpnet-base-v2": "mpnet"}
WORD_EXPERIMENTS = {
    "word_probing", "neurons", "neuron_spread", "smallest_set", "selectivity", "description_length",
}  # fmt: skip
TOLERANCE = (
    1e-6  # of floats in claims.csv and summary.csv, relative: versions of scipy differ in the last digits
)


def studies() -> list[Path]:
    """The folders of finished studies."""
    return sorted(path.parent for path in RESULTS.glob("*/results.csv.gz"))


@cache
def read_points(folder: Path) -> pd.DataFrame:
    """Finished points of a study from its results.csv.gz, with the columns of `whichlayers.results.frames.finished`."""
    texts = ("condition", "order", "reinit", "finetuned_on")
    rows = pd.read_csv(folder / "results.csv.gz", dtype=dict.fromkeys(texts, object))
    rows = rows.assign(**{name: rows[name].fillna("") if name in rows else "" for name in texts})
    scores = [row[row["primary_metric"]] for row in rows.to_dict("records")]
    is_word, is_probe = rows["experiment"].isin(WORD_EXPERIMENTS), rows["experiment"] == "probing"
    settings = zip(rows["epochs"], rows["lr"], strict=True)
    what = rows["condition"].str.replace(r"^.*: ", "", regex=True)
    selected = what.str.extract(r"^(top|bottom|random|all)")[0].fillna("")
    percentage = what.str.extract(r"(\d+)%")[0].astype(float)
    points = rows.assign(
        value=np.array(scores, dtype=float),
        metric=rows["primary_metric"],
        status="done",
        kind=np.select([is_word, is_probe], ["word_probe", "probe"], "finetune"),
        family=rows["family"] if "family" in rows else rows["model"].map(FAMILIES),
        training=[json.dumps({"epochs": epochs, "lr": lr}) for epochs, lr in settings],
        untouched=rows["reinit"] == "",
        neurons=selected.where(is_word, ""),
        share=percentage.fillna(rows["x"]).where(selected.isin(["top", "bottom", "random"])) / 100,
        ranking=np.where(is_word, np.where(what.str.endswith("probeless"), "probeless", "lca"), ""),
        guess=rows.get("guess", math.nan),
        reinit_pooler=False,
        adapter=None,
        **dict.fromkeys(SEED_COLUMNS, rows["seed"]),
    )
    for column in ("order", "reinit"):
        points[column] = [tuple(map(int, text.split())) for text in rows[column]]
    return finished(points)


@cache
def recompute_claims(folder: Path) -> list[Claim]:
    """All claims on the results of a study, evaluated by the present code."""
    kept = folder / "weight_change.csv.gz"
    if kept.is_file() or not (folder / "claims.csv").is_file():
        return evaluate_claims(read_points(folder), pd.read_csv(kept) if kept.is_file() else None)
    points = read_points(folder)
    found = evaluate_claims(points)
    if points["experiment"].isin(PARTLY_TRAINED).any():
        return found
    stored = pd.read_csv(folder / "claims.csv")
    of_weights = {text[0]: _weight_claim(stored, *text) for text in (("S1", S1), ("S2", S2))}
    return [of_weights.get(claim.id) or claim for claim in found]


def _weight_claim(stored: pd.DataFrame, claim: str, text: str) -> Claim | None:
    """S1 or S2 from the effects, intervals and numbers of trials of its tests; None if it was not tested."""
    tests = []
    stored = stored[(stored["claim"] == claim) & stored["effect"].notna()]
    for row in stored.itertuples(index=False):
        if claim == "S1" and not is_s1_task(row.task):
            continue
        n = int(row.n)
        sd = (row.high - row.low) / 2 * math.sqrt(n) / stats.t.ppf((1 + row.level) / 2, n - 1)
        sample = np.arange(n) - (n - 1) / 2
        test = ratio_test(np.exp(row.effect + sample * sd / sample.std(ddof=1)), row.about)
        tests.append(replace(test, model=row.model, task=row.task))
    return evaluate_claim(claim, text, tests, ClaimThresholds(), REMARK) if tests else None


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """File name -> its recomputed content."""
    return {
        "claims.csv": as_table(recompute_claims(folder)),
        "summary.csv": summary(read_points(folder)),
    }


def differences(folder: Path) -> list[str]:
    """What differs between the stored files and the recomputed ones, one sentence each."""
    found = {
        f"{folder.name}/{name}": difference(folder / name, table) for name, table in tables(folder).items()
    }
    return [f"{name}: {text}" for name, text in found.items() if text]


def difference(path: Path, table: pd.DataFrame) -> str:
    """How a stored table differs from a recomputed one, beyond the last digits; empty if it does not."""
    if not path.is_file():
        return "there is no such file"
    stored, recomputed = pd.read_csv(path), pd.read_csv(io.StringIO(table.to_csv(index=False)))
    try:
        pd.testing.assert_frame_equal(recomputed, stored, rtol=TOLERANCE, atol=1e-12, check_dtype=False)
    except AssertionError as error:
        return f"{str(error).splitlines()[0]}: {str(error).splitlines()[-1]}"
    return ""


def write_tables(folder: Path) -> None:
    """Write claims.csv and summary.csv of a study, if they differ."""
    for name, table in tables(folder).items():
        if difference(folder / name, table):
            table.to_csv(folder / name, index=False)


@cache
def subjects() -> list[SubjectClaim]:
    """The verdicts on all claims, over all studies, models and tasks."""
    return claims_by_subject(
        [StudyClaims(folder.name, tuple(recompute_claims(folder))) for folder in studies()]
    )


def claims_page() -> str:
    """Content of claims.md."""
    return PAGE.format(table=subjects_markdown(subjects()))


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description="Recompute claims.csv and summary.csv from results.csv.gz.")
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    if parser.parse_args().check:
        found = [text for folder in studies() for text in differences(folder)]
        if CLAIMS_PAGE.read_text(encoding="utf-8") != claims_page():
            found.append("claims.md differs")
        print(*found, sep="\n")
        return 1 if found else 0
    for folder in studies():
        write_tables(folder)
    CLAIMS_PAGE.write_text(claims_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
