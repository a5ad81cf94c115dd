"""A run as it is seen: a bar with an ETA on a terminal, plain lines every few seconds elsewhere."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from whichlayers.cli.format import duration, trial_text
from whichlayers.runs import events
from whichlayers.text import counted

SECONDS_BETWEEN_LINES = 5.0
SECONDS_OF_PACE = 60.0  # over which the pace is judged
SECONDS_TO_JUDGE = 2.0  # before which it is not


class Onlooker:
    """Takes the events of a run. `quiet` shows only what went wrong."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self.began = time.monotonic()
        self.last_line = self.began
        self.news: deque[tuple[float, int]] = deque()  # (when, steps that this run did), of the last minute
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
                self._say(f"failed: {trial_text(trial)}: {error.partition(chr(10))[0]}", "red")
            case events.Note(text):
                self._say(text, "yellow")

    def _start(self, event: events.RunStarted) -> None:
        self.started = event
        self.began = time.monotonic()
        if not event.stacks or self.quiet:
            return
        where = f"{counted(event.workers, 'worker')} on" if event.workers else "this process on"
        rest = f"{event.trials_done:,} of {event.trials:,} trials are done; " if event.trials_done else ""
        self._say(
            f"{rest}{counted(event.trials - event.trials_done, 'trial')} to run,"
            f" {counted(event.steps, 'step')} in {counted(event.stacks, 'stack')}:"
            f" {where} {', '.join(event.devices)}",
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
        if self.started is None or self.quiet:
            return
        now = time.monotonic()
        total, done = self.started.steps, event.steps_done
        speed = self._speed(now, done - event.steps_restored)
        pace = "" if speed is None else f"{speed:,.0f} steps/s" if speed > 10 else f"{speed:.1f} steps/s"
        left = f"about {duration((total - done) / speed)} left" if speed and done < total else ""
        trials = f"{event.trials_done:,}/{self.started.trials:,}"
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, trials=trials, steps=pace, left=left)
        elif now - self.last_line >= SECONDS_BETWEEN_LINES or done == total:
            self.last_line = now
            share = f"{100 * done / total:.0f}%" if total else "100%"
            failed = f", {event.trials_failed:,} failed" if event.trials_failed else ""
            self._say(
                f"{trials} trials{failed}; {done:,}/{total:,} steps ({share})"
                + (f", {pace}" if pace else "")
                + (f", {left}" if left else ""),
                "",
            )

    def _speed(self, now: float, done: int) -> float | None:
        """Steps a second over the last minute, the start of the workers left out; None while unknown."""
        if self.news and done < self.news[-1][1]:  # a stack that failed starts again
            self.news.clear()
        self.news.append((now, done))
        while len(self.news) > 2 and now - self.news[0][0] > SECONDS_OF_PACE:
            self.news.popleft()
        then, before = self.news[0]
        seconds = now - then
        return (done - before) / seconds if seconds >= SECONDS_TO_JUDGE and done > before else None

    def _say(self, text: str, style: str) -> None:
        if self.quiet and style != "red":
            return
        self.console.print(Text(text, style=style), soft_wrap=True)
