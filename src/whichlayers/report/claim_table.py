"""The claims as a table: in the terminal, and as rows for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

from whichlayers.analysis.claims.base import FAILS, HOLDS, NOT_ASKED, OPEN, Claim, Test, Verdict
from whichlayers.plots.display_names import metric_name, number

COEFFICIENTS = ("r", "rho")
STYLES: dict[Verdict, str] = {HOLDS: "green", FAILS: "red", OPEN: "yellow", NOT_ASKED: "dim"}


@dataclass(frozen=True)
class ClaimRow:
    id: str
    text: str
    about: str
    effect: str
    level: str  # of the interval
    interval: str
    p: str
    verdict: Verdict
    needed: str  # "about 8 trials", or empty
    details: str
    tests: tuple[ClaimRow, ...] = ()


def claim_rows(claims: Sequence[Claim]) -> list[ClaimRow]:
    return [_row(claim.id, claim.text, claim.about, claim, claim.details, claim.tests) for claim in claims]


def claims_table(claims: Sequence[Claim], with_tests: bool = False) -> Table:
    """A row a claim, which fits any width: its words, then the numbers that decide, then what they rest on."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_lines=False)
    for name in ("", "verdict"):
        table.add_column(name, no_wrap=True)
    table.add_column("claim, and the test that decides it", overflow="fold")
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
    needed = f"; to decide it: {row.needed}" if row.needed else ""
    if not row.effect:
        return "no spread"
    interval = f"{row.level} interval {row.interval}, " if row.interval else ""
    return f"{row.effect}, {interval}p = {row.p}{needed}".replace("p = <", "p < ")


def _row(
    id: str, text: str, about: str, what: Claim | Test, details: str, tests: tuple[Test, ...] = ()
) -> ClaimRow:
    shown = not math.isnan(what.effect)
    p = what.p if isinstance(what, Claim) else what.p_adjusted
    return ClaimRow(
        id,
        text,
        about,
        effect=_effect(what, about) if shown else "",
        level=f"{what.level:.0%}",
        interval="" if math.isnan(what.low) else f"{number(what.low)} to {number(what.high)}",
        p="" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}",
        verdict=what.verdict,
        needed=f"about {what.needed} {what.needs}" if what.needed and what.verdict == OPEN else "",
        details=details,
        tests=tuple(_row("", "", test.about, test, test.note) for test in tests),
    )


def _effect(what: Claim | Test, about: str) -> str:
    """+0.031 accuracy; a coefficient by its name: r = 0.984"""
    if what.unit in COEFFICIENTS:
        if " against " in about:
            return f"difference in {what.unit}: {number(what.effect, signed=True)}"
        return f"{what.unit} = {number(what.effect)}"
    return f"{number(what.effect, signed=_signed(what.unit))} {_unit(what.unit)}"


def _signed(unit: str) -> bool:
    return not unit.startswith(("rms", "r")) and unit != "rho"


def _unit(unit: str) -> str:
    if unit.startswith("rms, "):
        return f"{metric_name(unit.removeprefix('rms, '))} (rms)"
    return metric_name(unit)
