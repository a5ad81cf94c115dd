"""The words of verdicts, the same in the terminal, on the page, in claims.csv and in JSON.

docs/statistics.md lists them. "Not enough trials" and "not tested" mean the same for claims, recommendations and the
single comparisons behind them.
"""

from __future__ import annotations

from typing import Final, Literal

ClaimVerdict = Literal["holds", "below the margin", "does not hold", "not enough trials", "not tested"]
HOLDS: Final = "holds"
BELOW_MARGIN: Final = "below the margin"
FAILS: Final = "does not hold"
UNDECIDED: Final = "not enough trials"
NOT_TESTED: Final = "not tested"
CLAIM_VERDICTS: tuple[ClaimVerdict, ...] = (HOLDS, BELOW_MARGIN, FAILS, UNDECIDED, NOT_TESTED)
# in claims.csv of earlier versions
EARLIER_WORDS: dict[str, ClaimVerdict] = {"not enough data": UNDECIDED, "not asked for": NOT_TESTED}
NOT_TESTABLE = "not testable here"  # a claim about models that no study has
NO_SUCH_MODEL = f"{NOT_TESTABLE}: no such model"  # in claims.csv, and in legends

AnswerVerdict = Literal["recommended", "nothing to gain", "not enough trials", "not learned"]
RECOMMENDED: Final = "recommended"
NOTHING_TO_GAIN: Final = "nothing to gain"
NOT_ENOUGH_TRIALS: Final = "not enough trials"
NOT_LEARNED: Final = "not learned"
ANSWER_VERDICTS: tuple[AnswerVerdict, ...] = (RECOMMENDED, NOTHING_TO_GAIN, NOT_ENOUGH_TRIALS, NOT_LEARNED)

# of the single comparisons behind a recommendation
ComparisonResult = Literal[
    "within the tolerance", "below the tolerance", "better", "worse", "not enough trials", "not tested"
]
WITHIN_TOLERANCE: Final = "within the tolerance"
BELOW_TOLERANCE: Final = "below the tolerance"
BETTER: Final = "better"
WORSE: Final = "worse"
COMPARISON_RESULTS: tuple[ComparisonResult, ...] = (
    *(WITHIN_TOLERANCE, BELOW_TOLERANCE, BETTER, WORSE),
    *(NOT_ENOUGH_TRIALS, NOT_TESTED),
)
