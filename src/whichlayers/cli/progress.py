"""Progress of a run: a progress bar with the time left in a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from whichlayers.cli.format import describe_trial
from whichlayers.runs import events
from whichlayers.text import counted, format_duration

SECONDS_BETWEEN_LINES = 5.0
SPEED_WINDOW = 60.0  # seconds over which the displayed speed is averaged
MIN_SPEED_WINDOW = 2.0  # seconds before a speed is displayed


class ProgressDisplay:
    """Shows the events of a run on a console. With `quiet`, shows only failures."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self.start_time = time.monotonic()
        self.last_line = self.start_time
        self.last_state: tuple[int, int, int] | None = (
            None  # trials done, trials failed and steps of the last line
        )
        self.history: deque[tuple[float, int]] = deque()  # (time, steps done by this run) within SPEED_WINDOW
        self.started: events.RunStarted | None = None
        self.bar: Progress | None = None
        self.task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, event: events.RunEvent) -> None:
        match event:
            case events.RunStarted():
                self._start(event)
            case events.Progress():
                self._progress(event)
            case events.TrialFailed(trial, error):
                self._print(f"failed: {describe_trial(trial)}: {error.partition(chr(10))[0]}", "red")
            case events.Loading(text):
                self._print(f"{text} ...", "dim")
            case events.Note(text):
                self._print(text, "yellow")

    def _start(self, event: events.RunStarted) -> None:
        """Print the plan of the run; in a terminal, start the progress bar."""
        self.started = event
        self.start_time = time.monotonic()
        if not event.stacks or self.quiet:
            return
        workers = f"{counted(event.workers, 'worker')} on" if event.workers else "this process on"
        total = counted(event.trials, "trial")
        done = f"{event.trials_done:,} of {total} already done; " if event.trials_done else ""
        self._print(
            f"{done}{counted(event.trials - event.trials_done, 'trial')} to run,"
            f" {counted(event.steps, 'step')} in {counted(event.stacks, 'stack')}:"
            f" {workers} {', '.join(event.devices)}",
            "",
        )
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.fields[trials]} trials"),
                BarColumn(),
                TextColumn("{task.percentage:3.0f}%  {task.fields[steps]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                console=self.console,
            )
            self.task = self.bar.add_task(
                "", total=event.steps, trials=f"{event.trials_done}/{event.trials}", steps="", left=""
            )
            self.bar.start()

    def _progress(self, event: events.Progress) -> None:
        """Update the progress bar, or print a line if the last one is some seconds old."""
        if self.started is None or self.quiet:
            return
        now = time.monotonic()
        total, done = self.started.steps, event.steps_done
        speed = self._steps_per_second(now, done - event.steps_restored)
        rate = "" if speed is None else f"{speed:,.0f} steps/s" if speed > 10 else f"{speed:.1f} steps/s"
        left = f"about {format_duration(event.seconds_left)} left" if event.seconds_left else ""
        trials = f"{event.trials_done:,}/{self.started.trials:,}"
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, trials=trials, steps=rate, left=left)
            return
        state = event.trials_done, event.trials_failed, done
        if now - self.last_line >= SECONDS_BETWEEN_LINES or (done == total and state != self.last_state):
            self.last_line, self.last_state = now, state
            percent = f"{100 * done / total:.0f}%" if total else "100%"
            failed = f", {event.trials_failed:,} failed" if event.trials_failed else ""
            self._print(
                f"{trials} trials{failed}; {done:,}/{total:,} steps ({percent})"
                + (f", {rate}" if rate else "")
                + (f", {left}" if left else ""),
                "",
            )

    def _steps_per_second(self, now: float, done: int) -> float | None:
        """The speed over the last minute after `done` steps, not counting restored ones; None while unknown."""
        if self.history and done < self.history[-1][1]:  # a failed stack restarts
            self.history.clear()
        self.history.append((now, done))
        while len(self.history) > 2 and now - self.history[0][0] > SPEED_WINDOW:
            self.history.popleft()
        first_time, first_done = self.history[0]
        seconds = now - first_time
        return (done - first_done) / seconds if seconds >= MIN_SPEED_WINDOW and done > first_done else None

    def _print(self, text: str, style: str) -> None:
        if self.quiet and style != "red":
            return
        self.console.print(Text(text, style=style), soft_wrap=True)
