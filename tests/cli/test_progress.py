"""Progress display of a run: steps done, speed and time left."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from whichlayers.cli import progress
from whichlayers.cli.progress import ProgressDisplay
from whichlayers.runs.events import Progress, RunStarted


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def last_line(clock, *updates: tuple[float, int, int], seconds_left: float | None = None) -> str:
    """The last line after updates (time, steps done, steps restored) of a run with 1,000 steps."""
    out = io.StringIO()
    with ProgressDisplay(Console(file=out, width=200)) as display:
        display(RunStarted(Path("mine"), 10, 0, 1000, 2, 1, ("cpu",)))
        for when, done, restored in updates:
            clock[0] = 100.0 + when
            display(Progress(0, 0, done, restored, seconds_left))
    return out.getvalue().splitlines()[-1]


def test_the_speed_is_that_of_the_last_minute(clock):
    line = last_line(clock, (1, 0, 0), (6, 100, 0), (11, 200, 0))
    assert line == "0/10 trials; 200/1,000 steps (20%), 20 steps/s"
    line = last_line(clock, (1, 0, 0), (2, 500, 0), (64, 600, 0), (74, 700, 0))
    assert "700/1,000 steps (70%), 10.0 steps/s" in line


def test_the_time_left_is_that_of_the_event(clock):
    line = last_line(clock, (1, 0, 0), (6, 100, 0), (11, 200, 0), seconds_left=90)
    assert line == "0/10 trials; 200/1,000 steps (20%), 20 steps/s, about 1 min 30 s left"


@pytest.mark.parametrize(
    "first", [[(1, 600, 600)], [(1, 0, 0), (2, 600, 600)], [(1, 300, 300), (6, 650, 600)]]
)
def test_restored_steps_count_as_done_but_not_for_the_speed(clock, first):
    when, done, restored = first[-1]
    line = last_line(clock, *first, (when + 10, done + 100, restored))
    assert f"{done + 100}/1,000 steps" in line
    speed = (done + 100 - 600) / (when + 10 - first[0][0])
    assert f"{speed:.1f} steps/s" in line


def test_the_last_line_is_printed_again_only_if_something_changed(clock):
    """Trials are evaluated after their last step."""
    out = io.StringIO()
    with ProgressDisplay(Console(file=out, width=200)) as display:
        display(RunStarted(Path("mine"), 10, 0, 1000, 2, 1, ("cpu",)))
        for done in (8, 8, 10, 10):
            display(Progress(done, 0, 1000, 0, None))
    assert [line.partition(" ")[0] for line in out.getvalue().splitlines()[1:]] == ["8/10", "10/10"]
