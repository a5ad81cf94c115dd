"""Claims over several studies: the verdict of each claim for each study, model and task.

    studies = load_studies([Path("bert"), Path("mpnet")])
    table = subject_table(claims_by_subject(studies))

The tests of a claim are those of its study. The tests of one model and task are combined as those of a whole claim are:
the claim holds there if the largest of their p values is significant, after Holm's adjustment over the models and tasks
of the claim and study, since each of them is a conclusion of its own. If the whole claim holds, it holds on every model
and task. Nothing is adjusted over studies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from whichlayers.analysis.claims import CLAIMS, from_table, study_claims
from whichlayers.analysis.claims.base import (
    BELOW_MARGIN,
    HOLDS,
    NOT_TESTED,
    UNDECIDED,
    Claim,
    ClaimTest,
    ClaimThresholds,
    Verdict,
    combined_verdict,
    decisive_test,
)
from whichlayers.analysis.intervals import holm
from whichlayers.analysis.verdicts import NOT_TESTABLE
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import find_folder

CLAIMS_FILE = "claims.csv"


@dataclass(frozen=True)
class StudyClaims:
    """The claims tested on one study."""

    study: str  # name of its folder
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class SubjectClaim:
    """A claim on one model and task of a study, with the numbers of its decisive test."""

    claim: str  # id
    study: str  # empty if no study has the model
    model: str
    task: str  # empty if its tests compare tasks
    verdict: Verdict
    test: ClaimTest | None  # the decisive one; None if no study has the model
    tests: int
    tests_hold: int

    @property
    def text(self) -> str:
        return CLAIMS.get(self.claim, self.claim)

    @property
    def verdict_label(self) -> str:
        return NOT_TESTABLE if self.test is None else self.verdict


def load_studies(paths: Sequence[Path], thresholds: ClaimThresholds | None = None) -> list[StudyClaims]:
    """Test the claims on each study.

    Args:
        paths: Study folders. A folder without results.db is read from its claims.csv, if it has one.
        thresholds: Significance level and margins; verdicts in claims.csv are fixed, and have the default ones.
    """
    folders = [path if path.is_dir() else find_folder(path).path for path in map(Path, paths)]
    folders = list(dict.fromkeys(folder.resolve() for folder in folders))
    names = [folder.name for folder in folders]
    return [
        StudyClaims(
            str(folder) if names.count(folder.name) > 1 else folder.name, load_claims(folder, thresholds)
        )
        for folder in folders
    ]


def load_claims(path: Path, thresholds: ClaimThresholds | None = None) -> tuple[Claim, ...]:
    """The claims on the results.db of a study, or if there is none, in the claims.csv of its folder."""
    exported = path / CLAIMS_FILE
    if not path.is_dir() or (path / "results.db").exists() or not exported.is_file():
        return tuple(study_claims(find_folder(path).path, thresholds))
    if thresholds is not None and thresholds.margin is not None:
        raise WhichlayersError(
            f"{path} has no results.db, only {CLAIMS_FILE}, whose verdicts have the default margin: leave out --margin"
        )
    try:
        return tuple(from_table(pd.read_csv(exported)))
    except (ValueError, KeyError, TypeError) as error:
        raise WhichlayersError(f"{exported} cannot be read as a table of claims: {error}") from error


def claims_by_subject(
    studies: Sequence[StudyClaims], thresholds: ClaimThresholds | None = None
) -> list[SubjectClaim]:
    """One entry per claim, study, model and task that was tested, in the order of the claims.

    Models that a claim is about and that no study has come last in each claim.
    """
    alpha = (thresholds or ClaimThresholds()).alpha
    found: list[SubjectClaim] = []
    ids = dict.fromkeys([*CLAIMS, *(claim.id for study in studies for claim in study.claims)])
    for id in ids:
        of_claim = [(study.study, claim) for study in studies for claim in study.claims if claim.id == id]
        for study, claim in of_claim:
            found += _of_study(study, claim, alpha)
        lacking = [set(claim.not_testable) for _, claim in of_claim if claim.not_testable or claim.tests]
        names = dict.fromkeys(name for _, claim in of_claim for name in claim.not_testable)
        found += [
            SubjectClaim(id, "", name, "", NOT_TESTED, None, 0, 0)
            for name in names
            if all(name in missing for missing in lacking)
        ]
    return found


def _of_study(study: str, claim: Claim, alpha: float) -> list[SubjectClaim]:
    groups: dict[tuple[str, str], list[ClaimTest]] = {}
    for test in claim.tests:
        groups.setdefault((test.model, test.task), []).append(test)
    largest = [max((test.p for test in tests), key=lambda p: (math.isnan(p), p)) for tests in groups.values()]
    # a claim that holds as a whole has every p value below alpha, and is a single conclusion
    adjusted = largest if claim.verdict in (HOLDS, BELOW_MARGIN) else holm(largest)
    found = []
    for ((model, task), tests), p in zip(groups.items(), adjusted, strict=True):
        verdict = combined_verdict(tests, alpha)
        if verdict in (HOLDS, BELOW_MARGIN) and not p < alpha:
            verdict, one = UNDECIDED, max(tests, key=lambda test: test.p)
        else:
            one = decisive_test(tests, verdict, alpha)
        holding = sum(test.verdict == HOLDS for test in tests)
        found.append(SubjectClaim(claim.id, study, model, task, verdict, one, len(tests), holding))
    return found


def subject_table(subjects: Sequence[SubjectClaim]) -> pd.DataFrame:
    """`claims_by_subject` as a table: claim, study, model, task, verdict, tests, tests_hold, and the decisive test."""
    shown = ["about", "effect", "low", "high", "level", "unit", "p", "n", "margin"]
    rows = []
    for one in subjects:
        names = ("claim", "study", "model", "task")
        test = {} if one.test is None else {name: getattr(one.test, name) for name in shown}
        facts = {"verdict": one.verdict_label, "tests": one.tests, "tests_hold": one.tests_hold}
        rows.append({name: getattr(one, name) for name in names} | facts | test)
    columns = ["claim", "study", "model", "task", "verdict", "tests", "tests_hold", *shown]
    table = pd.DataFrame(rows, columns=columns)
    table["n"] = table["n"].astype("Int64")
    return table
