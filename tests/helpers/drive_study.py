"""Runs a fake study in a process that tests kill: `python drive_study.py FOLDER WORKERS MAX_STACK TRIALS`."""

import os
import signal
import sys
from pathlib import Path

import fakes

from whichlayers.runs.run_study import run


def print_event(event: object) -> None:
    """Print the name of an event; the process kills itself at the event that KILL_AT_EVENT names."""
    if type(event).__name__ == os.environ.get("KILL_AT_EVENT"):
        os.kill(os.getpid(), signal.SIGKILL)
    print(type(event).__name__, flush=True)


if __name__ == "__main__":
    folder, workers, max_stack, trials = sys.argv[1:]
    summary = run(
        fakes.make_study(int(trials)),
        Path(folder),
        device="cpu",
        workers=int(workers),
        max_stack=int(max_stack),
        handlers=fakes.HANDLERS,
        assets=fakes.FakeAssets(),
        on_event=print_event,
    )
    print(summary.done, summary.failed)
