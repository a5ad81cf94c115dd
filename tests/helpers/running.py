"""Running a study with stand-ins, and what must hold afterwards."""

from __future__ import annotations

from pathlib import Path

import fakes
from fakes import FakeSubjects, accuracy, make_study

from whichlayers.results.db import Store
from whichlayers.results.records import Counts
from whichlayers.runs import run_study


def run(folder, study=None, **options):
    defaults = {"device": "cpu", "workers": 0, "engine": fakes.ENGINE}
    return run_study.run(study or make_study(), folder, **{"subjects": FakeSubjects(), **defaults, **options})


def computed(folder: Path) -> list[str]:
    log = folder.parent / "computed"
    return log.read_text().split() if log.exists() else []


def assert_complete(folder: Path, trials: int) -> None:
    """Every trial is done, with the numbers that this trial gives and no others."""
    with Store.read(folder / "results.db") as store:
        assert store.counts() == Counts(done=trials)
        for trial in store.trials("done"):
            rows = store.connection.execute(
                "SELECT epoch, value FROM epochs WHERE trial_id = ? AND metric = 'accuracy' ORDER BY epoch",
                (trial.id,),
            ).fetchall()
            assert [tuple(row) for row in rows] == [(e, accuracy(trial, e)) for e in (1, 2)]
