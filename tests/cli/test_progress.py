"""What a run looks like while it runs: how far it is, and how long it still takes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from whichlayers.cli import progress
from whichlayers.cli.progress import Onlooker
from whichlayers.runs.events import Progress, RunStarted


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def told(clock, *news: tuple[float, int, int]) -> str:
    """The last line after these: (when, steps done, of them restored), of 1,000 steps."""
    out = io.StringIO()
    with Onlooker(Console(file=out, width=200)) as onlooker:
        onlooker(RunStarted(Path("mine"), 10, 0, 1000, 2, 1, ("cpu",)))
        for when, done, restored in news:
            clock[0] = 100.0 + when
            onlooker(Progress(0, 0, done, restored))
    return out.getvalue().splitlines()[-1]


def test_the_pace_is_of_what_was_done_just_now(clock):
    line = told(clock, (1, 0, 0), (6, 100, 0), (11, 200, 0))
    assert line == "0/10 trials; 200/1,000 steps (20%), 20 steps/s, about 40 s left"


@pytest.mark.parametrize(
    "first", [[(1, 600, 600)], [(1, 0, 0), (2, 600, 600)], [(1, 300, 300), (6, 650, 600)]]
)
def test_steps_of_an_earlier_run_count_as_done_but_not_for_the_pace(clock, first):
    when, done, restored = first[-1]
    line = told(clock, *first, (when + 10, done + 100, restored))
    assert f"{done + 100}/1,000 steps" in line
    speed = (done + 100 - 600) / (when + 10 - first[0][0])
    assert f"{speed:.1f} steps/s, about {(1000 - done - 100) / speed:.0f} s left" in line
