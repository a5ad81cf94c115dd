"""Time and memory of everything but training for 1,000 to 100,000 trials: expand, plan, record, status, report.

    python benchmarks/size.py                      # prints a table; --out FILE writes it
    python benchmarks/size.py --trials 1000

The results are synthetic and written with the same functions that a run uses, with three epochs and the weight changes
of a model of twelve layers for each trial. Every step runs in its own process, to measure its peak memory.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

STEPS = ("expand", "plan", "record", "waiting", "status", "export", "power", "report")
TASKS = ("SST-2", "CoLA", "QNLI", "MRPC")
DEPTH, SIZES, EPOCHS = 12, (500, 5000), 3
POINTS = (DEPTH + 1) * len(TASKS) * len(SIZES)  # per repetition
MATRICES = 6  # per layer


@dataclass(frozen=True)
class SyntheticInfo:
    """Metadata of a model or a task."""

    name: str
    fingerprint: str
    depth: int = DEPTH
    has_pooler: bool = True
    family: str = "bert"
    train_rows: int = 50_000
    causal: bool = False
    has_biases: bool = True
    has_pairs: bool = False


class Assets:
    """In place of `runs.assets.Assets`, with synthetic metadata."""

    def model_info(self, spec):
        return SyntheticInfo(spec.name, f"model {spec.name}")

    def task_info(self, spec):
        return SyntheticInfo(spec.name, f"task {spec.name}")

    def stack_key(self, trial):
        from whichlayers.engine.finetune import stack_key

        return stack_key(trial, "bert", DEPTH)


def study(trials: int):
    from whichlayers.study.study_file import Study

    return Study(
        name="size",
        models=["google-bert/bert-base-uncased"],
        tasks=list(TASKS),
        experiments=["incremental"],
        train_sizes=list(SIZES),
        trials=math.ceil(trials / POINTS),
        training={"epochs": EPOCHS},
    )


def expand(trials: int):
    from whichlayers.study.expand import expand as expand_study

    return expand_study(study(trials), Assets())


def plan(trials: int, folder: Path) -> str:
    from whichlayers.engine.cost import StackTiming
    from whichlayers.runs.estimate import estimate_time
    from whichlayers.runs.plan import make_stacks, plan_rows

    all_trials = [point.trial for point in expand(trials)]
    stacks = make_stacks(all_trials, Assets().stack_key, 64, workers=8, fill=True)
    timings = {stack.time_key: StackTiming(64, 1, 20, 1, 0.065, 0.05, 1, 1) for stack in stacks}
    estimate_time(stacks, [timings] * 8, 10)
    return f"{len(stacks):,} stacks, {len(plan_rows(stacks))} rows"


def record(trials: int, folder: Path) -> str:
    from whichlayers.engine.results import EpochRecord, TrialResult, WeightChange
    from whichlayers.results.db import ResultsDB
    from whichlayers.results.records import ModelRow, RunRow, TaskRow
    from whichlayers.runs.plan import make_stacks

    points = expand(trials)
    tasks = [TaskRow(f"task {t}", t, "classification", "accuracy", ("accuracy",), 50_000) for t in TASKS]
    models = [ModelRow(f"model {m.name}", m.name, None, "bert", DEPTH) for m in study(trials).models]
    (folder / "study.toml").write_text(study(trials).to_toml())
    generator = random.Random(0)
    began = time.process_time()
    with ResultsDB.open(folder / "results.db", "size") as db:
        db.set_points(points, tasks, models)
        points_seconds = time.process_time() - began
        run_id = db.begin_run(RunRow("host", 1, "cuda", 1, {"torch": "2"}, None, "whichlayers run size"))
        for stack in make_stacks([point.trial for point in points], Assets().stack_key, 64):
            db.start(stack.trial_ids, run_id)
            results = []
            for trial in stack.trials:
                kept = DEPTH - len(trial.surgery.reinit)
                accuracy = 0.6 + 0.02 * kept + generator.gauss(0, 0.01)
                epochs = [
                    EpochRecord(e, 1 / e, 1.1 / e, {"accuracy": accuracy}, 30.0) for e in range(1, EPOCHS + 1)
                ]
                changes = [
                    WeightChange(
                        f"encoder.layer.{n}.matrix.{m}.weight", n + 1, generator.random(), 0.1, 20.0, 3.0
                    )
                    for n in range(DEPTH)
                    for m in range(MATRICES)
                ]
                results.append(TrialResult(trial.id, epochs, None, 90.0, changes))
            db.finish(results, 1 / len(stack.trials))
        db.end_run(run_id, "complete")
    size = (folder / "results.db").stat().st_size
    return f"{size / 1e6:,.0f} MB; writing the points took {points_seconds:.1f} s of CPU time"


def waiting(trials: int, folder: Path) -> str:
    """The queries of a run before it starts training."""
    from whichlayers.results.db import ResultsDB

    with ResultsDB.open(folder / "results.db", "size") as db:
        done, *_ = db.trial_ids("done"), db.unfinished_trials(), db.interrupted_stacks(), db.counts()
    return f"{len(done):,} done"


def status(trials: int, folder: Path) -> str:
    from whichlayers.cli.status import read_status
    from whichlayers.results.folder import StudyFolder

    return f"{read_status(StudyFolder(folder)).counts.done:,} done"


def export(trials: int, folder: Path) -> str:
    from whichlayers.results.export import export as write
    from whichlayers.results.folder import StudyFolder

    return f"{write(StudyFolder(folder), 'csv').stat().st_size / 1e6:,.0f} MB"


def power(trials: int, folder: Path) -> str:
    from whichlayers.analysis.power import power_estimates
    from whichlayers.results.frames import finished, load_points

    return f"{len(power_estimates(finished(load_points(folder)), 0.01)):,} comparisons"


def report(trials: int, folder: Path) -> str:
    from whichlayers.report.build import write_report

    return f"{write_report(folder).stat().st_size / 1e6:,.1f} MB"


def run_step(step: str, trials: int, folder: Path) -> None:
    """Run one step and print its time and peak memory as JSON."""
    began = time.perf_counter()
    note = f"{len(expand(trials)):,} points" if step == "expand" else globals()[step](trials, folder)
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "cpu": cpu, "memory": memory, "note": note}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--steps", nargs="*", default=list(STEPS), choices=STEPS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one:
        run_step(options.one, options.trials[0], options.folder)
        return
    rows = ["| trials | step | seconds | CPU seconds | peak memory | result |", "|---|---|---|---|---|---|"]
    print("\n".join(rows))
    for trials in options.trials:
        with tempfile.TemporaryDirectory(prefix="whichlayers-size-") as scratch:
            folder = options.folder or Path(scratch)
            for step in options.steps:
                arguments = ["--one", step, "--trials", str(trials), "--folder", str(folder)]
                command = [sys.executable, __file__, *arguments]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    print(done.stderr[-2000:])
                    rows.append(f"| {trials:,} | {step} | failed | | | |")
                else:
                    measured = json.loads(done.stdout.splitlines()[-1])
                    numbers = f"{measured['seconds']:.1f} | {measured['cpu']:.1f} | {measured['memory'] / 1e6:,.0f} MB"
                    rows.append(f"| {trials:,} | {step} | {numbers} | {measured['note']} |")
                print(rows[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
