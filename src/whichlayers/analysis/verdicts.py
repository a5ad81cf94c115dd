"""The words of verdicts, the same in the terminal, on the page, in claims.csv and in JSON.

docs/statistics.md lists them. "Not enough trials" and "not tested" mean the same for claims, recommendations and the
single comparisons behind them.
"""

from __future__ import annotations

from typing import Literal

ClaimVerdict = Literal["holds", "below the margin", "does not hold", "not enough trials", "not tested"]
HOLDS: ClaimVerdict = "holds"
BELOW_MARGIN: ClaimVerdict = "below the margin"
FAILS: ClaimVerdict = "does not hold"
UNDECIDED: ClaimVerdict = "not enough trials"
NOT_TESTED: ClaimVerdict = "not tested"
CLAIM_VERDICTS: tuple[ClaimVerdict, ...] = (HOLDS, BELOW_MARGIN, FAILS, UNDECIDED, NOT_TESTED)
# in claims.csv of earlier versions
EARLIER_WORDS: dict[str, ClaimVerdict] = {"not enough data": UNDECIDED, "not asked for": NOT_TESTED}
NOT_TESTABLE = "not testable here"  # a claim about models that no study has

AnswerVerdict = Literal["recommended", "nothing to gain", "not enough trials", "not learned"]
RECOMMENDED: AnswerVerdict = "recommended"
NOTHING_TO_GAIN: AnswerVerdict = "nothing to gain"
NOT_ENOUGH_TRIALS: AnswerVerdict = "not enough trials"
NOT_LEARNED: AnswerVerdict = "not learned"
ANSWER_VERDICTS: tuple[AnswerVerdict, ...] = (RECOMMENDED, NOTHING_TO_GAIN, NOT_ENOUGH_TRIALS, NOT_LEARNED)

# of the single comparisons behind a recommendation
ComparisonResult = Literal[
    "within the tolerance", "below the tolerance", "better", "worse", "not enough trials", "not tested"
]
WITHIN_TOLERANCE: ComparisonResult = "within the tolerance"
BELOW_TOLERANCE: ComparisonResult = "below the tolerance"
BETTER: ComparisonResult = "better"
WORSE: ComparisonResult = "worse"
COMPARISON_RESULTS: tuple[ComparisonResult, ...] = (
    *(WITHIN_TOLERANCE, BELOW_TOLERANCE, BETTER, WORSE),
    *(NOT_ENOUGH_TRIALS, NOT_TESTED),
)
