"""Repair of a damaged results.db: every row outside of the damaged page is saved, and lost trials run again."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import fakes
import pytest
from running import run_fake_study
from synthetic_results import downgrade
from typer.testing import CliRunner

from whichlayers.cli import app
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import ResultsDB
from whichlayers.results.folder import StudyFolder
from whichlayers.results.frames import load_points
from whichlayers.results.lock import StudyLockedError, study_lock
from whichlayers.results.repair import COLUMNS, WITHOUT_ROWID, _table_of, repair
from whichlayers.results.sqlite_pages import Pages, Row

PAGE = 4096
TRIALS = 60  # enough for inner pages in the trees of trials and epochs


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """A finished study whose error texts are longer than a page."""
    folder = tmp_path_factory.mktemp("intact") / "study"
    run_fake_study(folder, fakes.make_study(trials=TRIALS // 5))
    with closing(sqlite3.connect(folder / "results.db")) as db:
        db.execute("UPDATE trials SET error = ? WHERE rowid = 7", ("long " * 5000,))
        db.commit()
    return folder


@pytest.fixture
def study(intact, tmp_path):
    return Path(shutil.copytree(intact, tmp_path / "study"))


def contents(path: Path) -> dict[str, set[tuple]]:
    """All rows of all tables but meta, as SQLite reads them."""
    with closing(sqlite3.connect(path)) as db:
        return {table: set(db.execute(f"SELECT * FROM {table}")) for table in COLUMNS if table != "meta"}


def damage(path: Path, page: int, fill: bytes = b"\xa5") -> None:
    with path.open("r+b") as file:
        file.seek(PAGE * (page - 1))
        file.write(fill * PAGE)


def as_row(table: str, row: Row) -> tuple:
    return (row.rowid, *row.values[1:]) if table == "runs" else row.values


def test_all_rows_of_an_intact_file_are_found(intact):
    found: dict[str, set[tuple]] = {table: set() for table in COLUMNS}
    for row in Pages((intact / "results.db").read_bytes()).rows():
        if (table := _table_of(row)) is not None:
            found[table].add(as_row(table, row))
    expected = contents(intact / "results.db")
    assert {table: found[table] for table in expected} == expected
    assert len(expected["epochs"]) == TRIALS * 2 * 4


def test_tables_are_told_apart_by_their_number_of_columns():
    for table in COLUMNS:
        row = Row("index" if table in WITHOUT_ROWID else "table", 1, ("x",) * len(COLUMNS[table]))
        assert _table_of(row) == table


@pytest.mark.parametrize("fill", [b"\xa5", b"\0"])
def test_every_row_outside_of_the_damaged_page_is_saved(intact, tmp_path, fill):
    """For every page: what is lost is what was on that page, and a run completes the study again."""
    data = (intact / "results.db").read_bytes()
    before, pages = contents(intact / "results.db"), Pages(data)
    assert pages.count > 30
    names = Counter()
    for page in range(2, pages.count + 1):
        on_page = Counter(_table_of(row) for row in pages._page_rows(page))
        overflow = data[PAGE * (page - 1)] not in (0x0D, 0x0A, 0x05, 0x02)
        folder = StudyFolder(tmp_path / f"{page}")
        folder.path.mkdir()
        folder.database.write_bytes(data)
        damage(folder.database, page, fill)
        result = repair(folder)
        if result.copy is None:  # a free page: nothing of the study was damaged
            names["free"] += 1
            continue
        assert result.copy.name == "results.db.damaged"
        assert result.copy.stat().st_size == len(data)
        after = contents(folder.database)
        for table in ("points", "runs", "models", "tasks", "weight_changes"):
            assert after[table] <= before[table]
            assert len(before[table] - after[table]) == on_page[table]
        ids = {row[0] for row in after["trials"]}
        assert len(before["trials"]) - len(ids) == (on_page["trials"] or int(overflow))
        assert after["epochs"] <= before["epochs"]
        complete = {row[0] for row in after["trials"] if row[12] == "done"}
        lost = Counter(row.values[0] for row in pages._page_rows(page) if _table_of(row) == "epochs")
        assert complete == ids - set(lost)  # a trial with a lost value runs again
        assert result.reset == len(set(lost) & ids)
        names.update(on_page.keys() - {None})
    assert set(names) >= {"trials", "epochs", "points", "runs", "models", "tasks"}


def test_a_repaired_study_is_completed_by_a_run(study):
    before = load_points(study)
    path = study / "results.db"
    for page in (5, 9, 20, 21, 22, 30):
        damage(path, page)
    with pytest.raises(WhichlayersError, match="save what can be read with `whichlayers repair"):
        run_fake_study(study, fakes.make_study(trials=TRIALS // 5))
    result = CliRunner().invoke(app, ["repair", str(study)])
    assert result.exit_code == 0, result.output
    assert "results.db.damaged" in result.output
    assert 0 < len(ResultsDB.open_readonly(path).trial_ids("done")) < TRIALS
    run_fake_study(study, fakes.make_study(trials=TRIALS // 5))
    columns = ["experiment", "x", "trial_id", "status", "value"]
    assert load_points(study)[columns].equals(before[columns])
    assert "not damaged: 60 trials, 60 done; nothing was changed" in CliRunner().invoke(
        app, ["repair", str(study)]
    ).output.replace("\n", " ")


@pytest.mark.parametrize("damaged_bytes", [100, 20, PAGE])
def test_without_the_first_page_all_rows_are_saved(study, damaged_bytes):
    before = contents(study / "results.db")
    with (study / "results.db").open("r+b") as file:
        file.write(b"\xff" * damaged_bytes)
    (study / "study.toml").write_text('name = "fake study"')
    repair(StudyFolder(study))
    assert contents(study / "results.db") == before
    with ResultsDB.open(study / "results.db", "fake study") as db:
        assert db.counts().done == TRIALS


def test_a_schema_that_sqlite_cannot_quote_is_repaired(study):
    file = study / "results.db"
    damaged = file.read_bytes().replace(b"CREATE TABLE points(", b"CREATE TABL\x80 points(", 1)
    rows = contents(file)
    file.write_bytes(damaged)
    repair(StudyFolder(study))
    assert contents(file) == rows


def test_values_that_are_never_written_are_repaired(study):
    with closing(sqlite3.connect(study / "results.db")) as db:
        trial = db.execute("SELECT id FROM trials").fetchone()[0]
        db.execute("UPDATE epochs SET value = 'abc' WHERE trial_id = ? AND metric = 'accuracy'", (trial,))
        db.execute("UPDATE runs SET started = 1e300")
        db.commit()
    with pytest.raises(
        WhichlayersError, match=r"damaged \(the table epochs has the value 'abc' in its column value"
    ):
        load_points(study)
    result = repair(StudyFolder(study))
    assert (result.done, result.reset, result.rows["runs"]) == (TRIALS - 1, 1, 0)
    load_points(study)


def test_what_a_killed_run_left_in_the_log_is_saved(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    db = ResultsDB.create(folder / "results.db", "killed")
    db.connection.execute("PRAGMA wal_autocheckpoint = 0")
    db.set_points(fakes.make_points(), fakes.TASKS, fakes.MODELS)
    log = folder / "results.db-wal"
    copied = tmp_path / "copy"
    shutil.copytree(folder, copied)  # as after kill -9
    db.close()
    assert (copied / "results.db-wal").stat().st_size > 0
    assert not log.exists()
    with closing(sqlite3.connect(copied / "results.db")) as other:  # damage a row through the log
        other.execute("PRAGMA wal_autocheckpoint = 0")
        other.execute("UPDATE points SET x = 'a' WHERE rowid = 1")
        other.commit()
        shutil.copytree(copied, tmp_path / "damaged")
    result = repair(StudyFolder(tmp_path / "damaged"))
    assert result.rows["trials"] == 15
    assert result.rows["points"] == 14
    assert (tmp_path / "damaged" / "results.db.damaged-wal").stat().st_size > 0
    assert not (tmp_path / "damaged" / "results.db-wal").exists()


def test_an_older_version_is_repaired_and_migrated(study):
    expected = load_points(study)
    downgrade(study / "results.db")
    with closing(sqlite3.connect(study / "results.db")) as db:
        db.execute("DELETE FROM meta")
        db.commit()
    repair(StudyFolder(study))
    columns = ["experiment", "x", "trial_id", "status", "value", "kind", "metric", "reinit"]
    assert load_points(study)[columns].equals(expected[columns])


def test_nothing_is_changed_if_no_row_can_be_read(study):
    path = study / "results.db"
    path.write_bytes(random.Random(0).randbytes(50_000))
    before = path.read_bytes()
    with pytest.raises(WhichlayersError, match="has no row that can be read: restore it from a backup"):
        repair(StudyFolder(study))
    assert path.read_bytes() == before
    assert sorted(os.listdir(study)) == sorted([".lock", "results.db", "study.toml"])


def test_copies_are_not_overwritten(study):
    damage(study / "results.db", 20)
    assert repair(StudyFolder(study)).copy.name == "results.db.damaged"
    damage(study / "results.db", 20)
    assert repair(StudyFolder(study)).copy.name == "results.db.damaged2"


def test_a_running_study_is_not_repaired(study):
    with study_lock(study), pytest.raises(StudyLockedError):
        repair(StudyFolder(study))
