"""Progress of a run as a widget in a notebook."""

from __future__ import annotations

import importlib.util
import time
from html import escape
from types import TracebackType
from typing import Any, Self

from whichlayers.cli.format import describe_trial
from whichlayers.runs import events
from whichlayers.text import counted, format_duration

REFRESH_SECONDS = 0.5
MAX_MESSAGES = 20  # notes and failures that are shown


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook that can show widgets."""
    if importlib.util.find_spec("IPython") is None or importlib.util.find_spec("ipywidgets") is None:
        return False
    from IPython.core.getipython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


class NotebookProgress:
    """Shows the events of a run as a progress bar with the time left, and notes and failures below it."""

    def __init__(self) -> None:
        import ipywidgets

        self.bar = ipywidgets.FloatProgress(min=0.0, max=1.0, layout=ipywidgets.Layout(width="20em"))
        self.label = ipywidgets.HTML()
        self.messages = ipywidgets.HTML()
        self.box = ipywidgets.VBox([ipywidgets.HBox([self.bar, self.label]), self.messages])
        self.lines: list[str] = []
        self.started: events.RunStarted | None = None
        self.last_update = 0.0

    def __enter__(self) -> Self:
        from IPython.display import display

        display(self.box)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.bar.bar_style = "success" if kind is None else "danger"
        if kind is None:
            self.bar.value = 1.0  # also if there was nothing left to run

    def __call__(self, event: Any) -> None:
        match event:
            case events.RunStarted():
                self.started = event
                self.label.value = escape(f"{event.trials_done:,}/{event.trials:,} trials")
            case events.Progress():
                self._progress(event)
            case events.TrialFailed(trial, error):
                self._message(f"failed: {describe_trial(trial)}: {error.partition(chr(10))[0]}")
            case events.Note(text):
                self._message(text)

    def _progress(self, event: events.Progress) -> None:
        if self.started is None:
            return
        now, total, done = time.monotonic(), self.started.steps, event.steps_done
        if now - self.last_update < REFRESH_SECONDS and done < total:
            return
        self.last_update = now
        self.bar.value = done / total if total else 1.0
        text = f"{event.trials_done:,}/{self.started.trials:,} trials"
        text += f", {event.trials_failed:,} failed" if event.trials_failed else ""
        text += f", about {format_duration(event.seconds_left)} left" if event.seconds_left else ""
        self.label.value = escape(text)

    def _message(self, text: str) -> None:
        self.lines.append(text)
        more = len(self.lines) - MAX_MESSAGES
        shown = self.lines[:MAX_MESSAGES] + ([f"and {counted(more, 'more message')}"] if more > 0 else [])
        self.messages.value = "<br>".join(map(escape, shown))
