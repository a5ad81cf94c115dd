"""Runs a study with fakes and checks its results."""

from __future__ import annotations

from pathlib import Path

import fakes
from fakes import FakeAssets, accuracy, make_study

from whichlayers.results.db import ResultsDB
from whichlayers.results.records import Counts
from whichlayers.runs import run_study


def run_fake_study(folder, study=None, **options):
    """Run a study with the fake handler in this process, unless `options` say otherwise."""
    defaults = {"device": "cpu", "workers": 0, "handlers": fakes.HANDLERS}
    return run_study.run(study or make_study(), folder, **{"assets": FakeAssets(), **defaults, **options})


def computed_trials(folder: Path) -> list[str]:
    """Ids of all trials that the fake handler computed, in order; see `folder` in tests/runs/conftest.py."""
    log = folder.parent / "computed"
    return log.read_text().split() if log.exists() else []


def assert_complete(folder: Path, trials: int) -> None:
    """Assert that there are so many trials, all of them done and with the right values."""
    with ResultsDB.open_readonly(folder / "results.db") as db:
        assert db.counts() == Counts(done=trials)
        for trial in db.trials("done"):
            rows = db.connection.execute(
                "SELECT epoch, value FROM epochs WHERE trial_id = ? AND metric = 'accuracy' ORDER BY epoch",
                (trial.id,),
            ).fetchall()
            assert [tuple(row) for row in rows] == [(e, accuracy(trial, e)) for e in (1, 2)]
