"""A driving process for the tests to kill: `python drive_study.py FOLDER WORKERS MAX_STACK TRIALS`."""

import os
import signal
import sys
from pathlib import Path

import fakes

from whichlayers.runs.run_study import run


def look_on(event: object) -> None:
    """DIE_AT names an event at which the process kills itself."""
    if type(event).__name__ == os.environ.get("DIE_AT"):
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
        engine=fakes.ENGINE,
        subjects=fakes.FakeSubjects(),
        on_event=look_on,
    )
    print(summary.done, summary.failed)
