"""Chaos: kill -9 of the main process and of workers at random moments, until small studies are complete.

    python tests/hostile/chaos.py --kills 100

Each study runs with worker processes and is started again after every kill of its main process. A complete study must
have every trial exactly once, with the metrics of an undisturbed run. Fake trials take milliseconds, so that kills hit
all phases of a run: loading, the first writes, training, the end.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

HELPERS = Path(__file__).parents[1] / "helpers"
sys.path.insert(0, str(HELPERS))

import fakes  # noqa: E402
from running import run_fake_study  # noqa: E402

from whichlayers.results.db import ResultsDB  # noqa: E402

TRIALS_PER_POINT = 4
RUN_SECONDS = 120.0  # a run that takes longer hangs


def start(folder: Path, workers: int) -> subprocess.Popen[bytes]:
    """Start a run in a process group of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*sys.path, str(HELPERS)]),
        "FAKE_SECONDS": "0.03",
    }
    return subprocess.Popen(
        [
            sys.executable,
            str(HELPERS / "drive_study.py"),
            str(folder),
            str(workers),
            "2",
            str(TRIALS_PER_POINT),
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def workers_of(folder: Path) -> list[int]:
    """Ids of the processes whose output goes to the logs of this folder."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "fd" / "1").startswith(f"{folder}/logs"):
                pids.append(int(process.name))
        except OSError:
            continue
    return pids


def metrics(folder: Path) -> list[tuple[object, ...]]:
    """Status and all metrics, but not the times, of all trials."""
    with closing(sqlite3.connect(folder / "results.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return db.execute(
            "SELECT id, status, epoch, metric, value FROM trials LEFT JOIN epochs ON trial_id = id"
            " WHERE metric != 'seconds' ORDER BY id, epoch, metric"
        ).fetchall()


def kill_until_complete(folder: Path, rng: random.Random, kills_left: int) -> Counter[str]:
    """Run a study, killing its processes at random moments, until it is complete; counts what was killed."""
    killed: Counter[str] = Counter()
    while True:
        workers = rng.choice([1, 2])
        process = start(folder, workers)
        began = time.monotonic()
        # the start of Python and torch takes most of a run: moments before and after the first trial
        moments = sorted(rng.uniform(0, rng.choice([2.0, 6.0, 15.0])) for _ in range(rng.randint(1, 3)))
        while process.poll() is None and time.monotonic() - began < RUN_SECONDS:
            if moments and sum(killed.values()) < kills_left and time.monotonic() - began > moments[0]:
                moments.pop(0)
                victims = workers_of(folder)
                if victims and rng.random() < 0.5:
                    try:
                        os.kill(rng.choice(victims), signal.SIGKILL)
                        killed["worker"] += 1
                    except ProcessLookupError:
                        continue
                else:
                    process.kill()
                    killed[
                        "driver before results.db" if not (folder / "results.db").exists() else "driver"
                    ] += 1
            time.sleep(0.01)
        assert process.poll() is not None, f"{folder}: the run hangs"
        assert process.stderr is not None
        errors = process.stderr.read().decode(errors="replace")
        if process.returncode == 0:
            return killed
        assert process.returncode == -signal.SIGKILL, f"{folder}: exit code {process.returncode}\n{errors}"
        deadline = time.monotonic() + 30
        while workers_of(folder):
            assert time.monotonic() < deadline, "workers outlive the main process"
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100, help="total number of kill -9")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, total, studies = random.Random(options.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        undisturbed = Path(scratch) / "undisturbed"
        run_fake_study(undisturbed, fakes.make_study(TRIALS_PER_POINT))
        expected = metrics(undisturbed)
        assert {row[1] for row in expected} == {"done"}
        while sum(total.values()) < options.kills:
            folder = Path(scratch) / f"study-{studies}"
            total += kill_until_complete(folder, rng, options.kills - sum(total.values()))
            assert metrics(folder) == expected, f"{folder}: other metrics than in an undisturbed run"
            with ResultsDB.open_readonly(folder / "results.db") as db:
                assert db.counts().done == 5 * TRIALS_PER_POINT
            studies += 1
            print(f"{sum(total.values())} kills ({dict(total)}), {studies} studies complete", flush=True)
    print(f"no trial lost, doubled or changed after {sum(total.values())} kills of {studies} studies")


if __name__ == "__main__":
    main()
