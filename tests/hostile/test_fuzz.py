"""Bounded fuzzing of study files, data files and results.db: an error in one line or a result, never anything else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hostile_study import STUDY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whichlayers.data.file_task import load_file_task
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import ResultsDB
from whichlayers.results.export import epochs_frame, points_frame
from whichlayers.results.folder import StudyFolder
from whichlayers.results.frames import load_points, load_runs, load_study_summary
from whichlayers.results.invalid_values import VALID
from whichlayers.results.repair import repair
from whichlayers.results.sqlite_pages import Pages
from whichlayers.study.study_file import Study

FUZZ = settings(
    max_examples=60,
    deadline=5000,  # milliseconds
    derandomize=True,  # the same inputs in every run
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
LINES = STUDY.splitlines()
VALUES = st.recursive(
    st.one_of(
        st.integers(),
        st.floats(),
        st.booleans(),
        st.text(max_size=9),
        st.sampled_from(["all", "incremental", "./model"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = [key for key in Study.model_fields if key != "name"]


def edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """The text with pieces (position, length) replaced."""
    for position, length, new in edits:
        at = position % (len(text) + 1)
        text = text[:at] + new + text[at + length :]
    return text


EDITS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 20), st.text(max_size=12)), max_size=4)
SYNTAX = st.lists(
    st.sampled_from(list("[]{}=.,\"'#\n\\ \0") + ["[[", "]]", '"""', "1e9", "0x", "name", "trials"])
)


@FUZZ
@given(EDITS)
def test_study_files_with_random_edits(edits):
    read_study(edited(STUDY, edits))


@FUZZ
@given(st.one_of(SYNTAX.map("".join), st.text(max_size=200)))
def test_study_files_of_random_text(text):
    read_study(text)


@FUZZ
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_studies_with_random_values(changes):
    given_keys = {
        "name": "s",
        "models": ["./m"],
        "tasks": ["builtin:sentiment"],
        "experiments": ["incremental"],
    }
    try:
        study = Study(**(given_keys | changes))
    except WhichlayersError as error:
        assert str(error)
        return
    assert Study.from_toml(study.to_toml(), Path.cwd()) == study.resolved(Path.cwd())


def read_study(text: str) -> None:
    try:
        study = Study.from_toml(text, Path("/nowhere"))
    except WhichlayersError as error:
        assert str(error).startswith("study.toml")
        return
    assert Study.from_toml(study.to_toml(), Path("/nowhere")) == study


@FUZZ
@given(
    st.sampled_from([".tsv", ".csv", ".jsonl", ".tsv.gz", ".parquet"]),
    st.one_of(
        st.binary(max_size=300),
        EDITS.map(
            lambda edits: edited("text\tlabel\na b\tx\nc d\ty\n", edits).encode("utf-8", "surrogatepass")
        ),
        EDITS.map(
            lambda edits: edited('text,label\n"a, b",x\nc,y\n', edits).encode("utf-8", "surrogatepass")
        ),
        EDITS.map(
            lambda edits: edited('{"text": "a", "label": 1}\n{"text": "b", "label": 2}\n', edits).encode(
                "utf-8", "surrogatepass"
            )
        ),
    ),
)
def test_data_files_of_random_content(tmp_path_factory, extension, content):
    folder = tmp_path_factory.mktemp("data")
    train, dev = folder / f"train{extension}", folder / f"dev{extension}"
    train.write_bytes(content)
    dev.write_bytes(content)
    try:
        task = load_file_task("mine", train, dev, text="text", label="label")
    except WhichlayersError as error:
        assert str(train) in str(error) or str(dev) in str(error)
        return
    assert len(task.train) == len(task.evals[""]) > 0
    assert task.fingerprint


READERS = (
    load_points,
    load_runs,
    load_study_summary,
    lambda folder: points_frame(StudyFolder(folder)),
    lambda folder: epochs_frame(StudyFolder(folder)),
)


def read_all(folder: Path) -> int:
    """Read a study in all ways; returns how many failed with an error in one line."""
    errors = 0
    for read in READERS:
        try:
            read(folder)
        except WhichlayersError as error:
            assert "\n" not in str(error)
            errors += 1
    try:
        with ResultsDB.open_readonly(folder / "results.db") as db:
            db.counts(), db.failures(), db.notes(), db.last_run(), db.trials("done", "failed", "pending")
    except WhichlayersError:
        errors += 1
    return errors


@FUZZ
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6), st.one_of(st.binary(min_size=1, max_size=64), st.just(b"\0" * 4096))
        ),
        min_size=1,
        max_size=4,
    )
)
def test_results_files_with_random_bytes(template, tmp_path_factory, damage):
    """Every reader gives a result or one line, the file stays as it is, and what `repair` writes can be read."""
    folder = tmp_path_factory.mktemp("damaged")
    data = bytearray((template / "done" / "results.db").read_bytes())
    for position, new in damage:
        at = position % len(data)
        data[at : at + len(new)] = new
    path = folder / "results.db"
    path.write_bytes(data)
    read_all(folder)
    assert path.read_bytes() == data
    list(Pages(bytes(data)).rows())
    try:
        result = repair(StudyFolder(folder))
    except WhichlayersError as error:
        assert "no row that can be read" in str(error)
        return
    if result.copy is not None:
        assert result.copy.read_bytes() == data
        with ResultsDB.open_readonly(path) as db:
            assert db.counts().total <= 15
            db.trials("done", "pending")


COLUMNS = [(table, column) for table, columns in VALID.items() for column in columns]
STORED = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=8), st.binary(max_size=8),
    st.sampled_from(["{", "{}", "[]", "[1]", "null", '{"a": 1}', "0", "-1", "done", "1 2"]),
)  # fmt: skip


@FUZZ
@given(st.lists(st.tuples(st.sampled_from(COLUMNS), STORED), min_size=1, max_size=3))
def test_results_files_with_random_values(template, tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("values")
    path = folder / "results.db"
    path.write_bytes((template / "done" / "results.db").read_bytes())
    with closing(sqlite3.connect(path)) as db:
        for (table, column), value in changes:
            rows = "(SELECT rowid FROM {0} LIMIT 1)" if table not in ("epochs", "weight_changes") else None
            where = f"rowid IN {rows.format(table)}" if rows else "1"
            try:
                db.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {where}", (value,))
            except sqlite3.Error:  # a constraint of the table
                continue
        db.commit()
    errors = read_all(folder)
    if errors and (changes := repair(StudyFolder(folder))).copy is not None:
        with ResultsDB.open_readonly(path) as db:
            db.trials("done", "failed", "pending")


@pytest.mark.parametrize("size", [0, 1, 99, 100, 4095, 4096, 40_000])
def test_files_that_are_cut_off(template, tmp_path, size):
    data = (template / "done" / "results.db").read_bytes()[:size]
    (tmp_path / "results.db").write_bytes(data)
    assert read_all(tmp_path) == len(READERS) + 1
    assert (tmp_path / "results.db").read_bytes() == data
