"""Claims from the papers as a table for the terminal, and as rows for the report page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

from whichlayers.analysis.claims.base import (
    BELOW_MARGIN,
    FAILS,
    HOLDS,
    NOT_TESTED,
    OF_GAIN,
    UNDECIDED,
    Claim,
    ClaimTest,
    Verdict,
)
from whichlayers.plots.display_names import effect_unit
from whichlayers.text import format_p, format_range, format_score

COEFFICIENTS = ("r", "rho")
RMS = "rms, "
STYLES: dict[Verdict, str] = {
    HOLDS: "green",
    BELOW_MARGIN: "cyan",
    FAILS: "red",
    UNDECIDED: "yellow",
    NOT_TESTED: "dim",
}


@dataclass(frozen=True)
class ClaimRow:
    """A claim, or one of its tests, with all numbers formatted as text."""

    id: str
    text: str
    about: str
    effect: str
    level: str  # confidence level of the interval
    interval: str
    p: str
    verdict: Verdict
    needed: str  # "about 8 trials", or empty
    details: str
    tests: tuple[ClaimRow, ...] = ()


def effect_text(test: ClaimTest) -> str:
    """Effect of a test with its unit and interval: "+3.1 points of accuracy (+1.0 to +5.2)"; empty without a number."""
    if math.isnan(test.effect):
        return ""
    interval = _interval(test, test.about)
    return f"{_effect(test, test.about)}{f' ({interval})' if interval else ''}"


def claim_rows(claims: Sequence[Claim]) -> list[ClaimRow]:
    """Format claims and their tests."""
    return [_row(claim.id, claim.text, claim.about, claim, claim.details, claim.tests) for claim in claims]


def claims_table(claims: Sequence[Claim], with_tests: bool = False) -> Table:
    """Table with one row per claim: its text, the numbers of the decisive test, and details. Fits any width."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_lines=False)
    for name in ("", "verdict"):
        table.add_column(name, no_wrap=True)
    table.add_column("claim and decisive test", overflow="fold")
    for row in claim_rows(claims):
        lines = [escape(row.text), *(f"[dim]{escape(part)}[/dim]" for part in (row.details,) if part)]
        if row.effect:
            lines.insert(1, escape(f"{row.about}: {_sentence(row)}"))
        for test in row.tests if with_tests else ():
            lines.append(
                f"[{STYLES[test.verdict]}]{test.verdict}[/] {escape(f'{test.about}: {_sentence(test)}')}"
            )
        table.add_row(row.id, f"[{STYLES[row.verdict]}]{row.verdict}[/]", "\n".join(lines), end_section=True)
    return table


def _sentence(row: ClaimRow) -> str:
    needed = f"; needed to decide: {row.needed}" if row.needed else ""
    if not row.effect:
        return "no variance"
    interval = f"{row.level} interval {row.interval}" if row.interval else ""
    p = f"p = {row.p}".replace("p = <", "p < ") if row.p else ""  # no p value if some layers are not tested
    return ", ".join(part for part in (row.effect, interval, p) if part) + needed


def _row(
    id: str, text: str, about: str, result: Claim | ClaimTest, details: str, tests: tuple[ClaimTest, ...] = ()
) -> ClaimRow:
    has_effect = not math.isnan(result.effect)
    p = result.p if isinstance(result, Claim) else result.p_adjusted
    return ClaimRow(
        id,
        text,
        about,
        effect=_effect(result, about) if has_effect else "",
        level=f"{result.level:.0%}",
        interval=_interval(result, about),
        p=format_p(p),
        verdict=result.verdict,
        needed=f"about {result.needed} {result.needs}"
        if result.needed and result.verdict == UNDECIDED
        else "",
        details=details,
        tests=tuple(_row("", "", test.about, test, test.note) for test in tests),
    )


def _effect(result: Claim | ClaimTest, about: str) -> str:
    """An effect with its unit: "+3.1 points of accuracy", "0.7 points of accuracy (rms)", "r = 0.984"."""
    quantity, is_rms = _quantity(result.unit), result.unit.startswith(RMS)
    number = format_score(result.effect, quantity, signed=_is_signed(result, about))
    if quantity in COEFFICIENTS and _is_signed(result, about):
        return f"difference in {quantity}: {number}"
    if quantity in COEFFICIENTS:
        return f"{quantity} = {number}"
    text = f"{number}% {quantity}" if quantity == OF_GAIN else f"{number} {effect_unit(quantity)}"
    return f"{text} (rms)" if is_rms else text


def _interval(result: Claim | ClaimTest, about: str) -> str:
    """The ends of the interval of an effect, with signs if the effect has one."""
    return format_range(result.low, result.high, _quantity(result.unit), signed=_is_signed(result, about))


def _is_signed(result: Claim | ClaimTest, about: str) -> bool:
    """Whether an effect is a difference, in contrast to a root mean square or a correlation."""
    if _quantity(result.unit) in COEFFICIENTS:
        return " against " in about
    return not result.unit.startswith(RMS)


def _quantity(unit: str) -> str:
    """What an effect is measured in, without "rms, " (root mean square): a metric, "of the gain", "r" ..."""
    return unit.removeprefix(RMS)
