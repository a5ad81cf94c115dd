# ruff: noqa: E501
"""Hostile command lines and results.db files: each gives its own line and exit code, and nothing is written."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

# fmt: off
# a command line, the expected text, the exit code
COMMANDS = [
    ('nonsense', "no such command 'nonsense'", 2),
    ('run', "missing argument 'STUDY'", 2),
    ('run nowhere.toml', 'nowhere.toml: no such file; create one with: whichlayers new nowhere.toml', 2),
    ('run nowhere', 'no study file or preset nowhere; presets: demo, durrani2021/all, durrani2021/layers,', 2),
    ('run .', '. is a folder without study.toml: no study was run in it; give a study file', 2),
    ('run mine.toml --folder train.tsv', "train.tsv is a file: give a folder for the study's results", 2),
    ('run mine.toml --folder .', '. holds no study, but is not empty (again, dev.tsv, done, ...): give a new folder', 2),
    ('run mine.toml --workers -1', 'workers = -1: must be 0 (train in the main process) or more', 2),
    ('run mine.toml --workers many', "--workers many: must be an integer", 2),
    ('run mine.toml --max-stack 0', 'max_stack = 0: must be 1 (no stacking) or more', 2),
    ('run mine.toml --device quantum', '--device quantum: no such device; use cpu, cuda or cuda:N', 2),
    ('run mine.toml --device cuda:99', '--device cuda:99: torch sees 0 CUDA devices here; use cpu', 2),
    ('run mine.toml --retries -1', 'retries = -1: must be 0 or more', 2),
    ('run mine.toml --checkpoint-minutes nan', 'checkpoint_minutes = nan: must be 0 (no checkpoints) or more', 2),
    ('run mine.toml --checkpoint-minutes -1', 'checkpoint_minutes = -1.0: must be 0 (no checkpoints) or more', 2),
    ('run mine.toml --on mars', '--on mars: give this, ray or ray://HOST:PORT', 2),
    ('run mine.toml --trials 0', '--trials 0: must be at least 1', 2),
    ('run mine.toml --trials 1000000', 'trials = 1000000: must be an integer from 1 to 10,000, or a table of limits on the tr', 2),
    ('run mine.toml --sizes x', '--sizes x: give numbers of examples (500), fractions (0.1) or all, separated by comma', 2),
    ('run mine.toml --sizes 1e999', 'train_sizes[0] = inf: allowed: a number of examples (500), a fraction between 0 and 1', 2),
    ('run mine.toml --sizes -5', 'train_sizes[0] = -5: allowed: a number of examples (500), a fraction between 0 and 1', 2),
    ('run mine.toml --recipe nope', 'recipe[0] = "nope": allowed: "as_described", "as_described_v1", "as_released", "weigh', 2),
    ('run mine.toml --tasks nope', '--tasks nope: the study has no such task; it has:', 2),
    ('run mine.toml --words 0', "--words 0: must be at least 1", 2),
    ('run mine.toml --words 5', '--words (words) = 5: only applies to corpora, but the study has only reviews; remove', 2),
    ('run mine.toml --data nowhere', '--data (source) = "nowhere": only applies to GLUE tasks, the corpora of Durrani et al', 2),
    ('run mine.toml --model nobody/nothing', "model 'nobody/nothing' is not (completely) in the local cache, and HF_HUB_OFFLINE is", 2),
    ('run mine.toml --unknown 1', 'no such option: --unknown (Possible options: --on)', 2),
    ('run mine.toml mine.toml', 'got unexpected extra argument(s) (mine.toml)', 2),
    ('plan mine.toml --gpus 8', '--gpus 8: there is no GPU to measure on; run plan on a machine with a GPU, or use --w', 2),
    ('plan mine.toml --gpus x', '--gpus x: there is no GPU to measure on; run plan on a machine with a GPU, or use --w', 2),
    ('plan train.tsv', 'train.tsv is a data file, not a study file; write a study of it with: whichlayers new', 2),
    ('plan model', 'model is a folder without study.toml: no study was run in it; give a study file', 2),
    ('plan demmo', 'no study file or preset demmo; did you mean `demo`? presets: demo, durrani2021/all, d', 2),
    ('new', "missing argument 'file'", 2),
    ('new mine.toml', 'mine.toml already exists; choose another name, or delete it first', 2),
    ('new model', 'model already exists; choose another name, or delete it first', 2),
    ('new nowhere/x/y.toml --train nothing.tsv', 'nothing.tsv: no such file; check the path', 2),
    ('new a.toml --train train.tsv', 'train given without dev, text, label: give all four for your own files', 2),
    ('new a.toml --train train.tsv --dev dev.tsv --text t --label label', "train.tsv:1: no column 't'; the columns are 'text', 'label'", 2),
    ('new a.toml --train . --dev dev.tsv --text text --label label', '. is a folder; give a file', 2),
    ('new a.toml --metric bleu', 'metric given without train, dev, text, label: only allowed for your own files', 2),
    ('status', "missing argument 'STUDY'", 2),
    ('status nowhere', 'there is no nowhere: give the folder of a study that was run', 2),
    ('status model', 'model holds no results.db: give the folder of a study that was run', 2),
    ('status mine.toml', 'mine holds no results.db: run the study (whichlayers run mine.toml), or give the fold', 2),
    ('status train.tsv', 'train.tsv is not in the folder of a study (. holds no results.db)', 2),
    ('report model', 'model holds no results.db: give the folder of a study that was run', 2),
    ('export done --format xml', "--format xml: must be one of csv, parquet, tensorboard", 2),
    ('export done --out x.doc', '--out x.doc: the extension .doc is not known; use .csv or .parquet, or give --format', 2),
    ('export done --out .', '. is a folder: give a file, such as results.csv', 2),
    ('export done --out nowhere/x.csv', 'there is no folder nowhere to write x.csv into: create it first', 2),
    ('export done --out x.parquet --format csv', '--out x.parquet has the extension of parquet, but --format is csv: change one of them', 2),
    ('export done --out /dev/full --format csv', '/dev/full: No space left on device', 2),
    ('export done --out /dev/full --format parquet', '/dev/full: No space left on device', 2),
    ('compare done', "missing argument 'B'", 2),
    ('compare done model', 'model holds no results.db: give the folder of a study that was run', 2),
    ('compare done done --out .', '--out . is a folder: give a file, such as compare.html', 2),
    ('compare done done --out nowhere/c.html', '--out nowhere/c.html: the folder nowhere does not exist; create it, or choose another', 2),
    ('compare done again --out /dev/full', '/dev/full: No space left on device', 2),
    ('power done --difference 0', "--difference 0: must be at least 0.000001", 2),
    ('power done --difference nan', "--difference nan: must be at least 0.000001", 2),
    ('power done --add 0', "--add 0: must be at least 1", 2),
    ('power done --add 1000000000000', 'trials = 1000000000003: must be an integer from 1 to 10,000', 2),
    ('claims done --margin -1', "--margin -1: must be at least 0.000001", 2),
    ('claims done --margin 2', "--margin 2: must be at most 1", 2),
    ('claims done --format xml', "--format xml: must be one of table, json, csv, markdown", 2),
    ('watch done --port 0', "--port 0: must be at least 1", 2),
    ('watch done --port 99999', "--port 99999: must be at most 65535", 2),
    ('watch nowhere', 'there is no nowhere: give the folder of a study that was run', 2),
    ('repair', "missing argument 'FOLDER'", 2),
    ('repair nowhere', 'there is no nowhere: give the folder of a study that was run', 2),
    ('repair model', 'model holds no results.db: give the folder of a study that was run', 2),
    ('presets nothing', 'no preset nothing; available: demo, durrani2021/all, durrani2021/layers, durrani2021/', 2),
    ("--nonsense", "error: no such option: --nonsense; see whichlayers --help", 2),
]
# an SQL statement that changes results.db, a command, the expected text, the exit code
DATABASES = [
    ("UPDATE meta SET value = 'abc' WHERE key = 'schema_version'", 'status', "done/results.db is damaged (it has the schema version 'abc'): save what can be read w", 2),
    ("UPDATE meta SET value = 'abc' WHERE key = 'schema_version'", 'report', "done/results.db is damaged (it has the schema version 'abc'): save what can be read w", 2),
    ("UPDATE meta SET value = 'abc' WHERE key = 'schema_version'", 'export', "done/results.db is damaged (it has the schema version 'abc'): save what can be read w", 2),
    ("UPDATE meta SET value = 'abc' WHERE key = 'schema_version'", 'run', "done/results.db is damaged (it has the schema version 'abc'): save what can be read w", 2),
    ("UPDATE meta SET value = '-1' WHERE key = 'schema_version'", 'status', "done/results.db is damaged (it has the schema version '-1'): save what can be read wi", 2),
    ("UPDATE meta SET value = '²' WHERE key = 'schema_version'", 'status', "done/results.db is damaged (it has the schema version '²'): save what can be read wit", 2),
    ("UPDATE meta SET value = NULL WHERE key = 'schema_version'", 'status', 'done/results.db is damaged (it has no schema version): save what can be read with `wh', 2),
    ("UPDATE meta SET value = '99' WHERE key = 'schema_version'", 'status', 'done/results.db was written by a newer whichlayers (0.2.0) with schema version 99, an', 2),
    ("UPDATE meta SET value = '99' WHERE key = 'schema_version'", 'report', 'done/results.db was written by a newer whichlayers (0.2.0) with schema version 99, an', 2),
    ("UPDATE meta SET value = '99' WHERE key = 'schema_version'", 'export', 'done/results.db was written by a newer whichlayers (0.2.0) with schema version 99, an', 2),
    ("UPDATE meta SET value = '99' WHERE key = 'schema_version'", 'claims', 'done/results.db was written by a newer whichlayers (0.2.0) with schema version 99, an', 2),
    ("UPDATE meta SET value = '99' WHERE key = 'schema_version'", 'power', 'done/results.db was written by a newer whichlayers (0.2.0) with schema version 99, an', 2),
    ("UPDATE meta SET value = '99' WHERE key = 'schema_version'", 'run', 'done/results.db was written by a newer whichlayers (0.2.0) with schema version 99, an', 2),
    ("UPDATE meta SET value = '99999999999999999999' WHERE key = 'schema_version'", 'status', "done/results.db is damaged (it has the schema version '99999999999999999999'): save w", 2),
    ("UPDATE meta SET value = '0' WHERE key = 'schema_version'", 'report', 'done/results.db was written by an older whichlayers (0.2.0) with schema version 0, an', 2),
    ('DELETE FROM meta', 'status', 'done/results.db is damaged (it has no schema version): save what can be read with `wh', 2),
    ('DELETE FROM meta', 'report', 'done/results.db is damaged (it has no schema version): save what can be read with `wh', 2),
    ('DELETE FROM meta', 'export', 'done/results.db is damaged (it has no schema version): save what can be read with `wh', 2),
    ('DELETE FROM meta', 'run', 'done/results.db is damaged (it has no schema version): save what can be read with `wh', 2),
    ("DELETE FROM meta WHERE key = 'study_name'", 'run', 'done/results.db is damaged (it has no study name): save what can be read with `whichl', 2),
    ('UPDATE epochs SET value = 9e999', 'report', 'done/results.db is damaged (the table epochs has the value inf in its column value):', 2),
    ('UPDATE epochs SET value = 9e999', 'export', 'done/results.db is damaged (the table epochs has the value inf in its column value):', 2),
    ('UPDATE epochs SET value = 9e999', 'claims', 'done/results.db is damaged (the table epochs has the value inf in its column value):', 2),
    ('UPDATE epochs SET value = 9e999', 'power', 'done/results.db is damaged (the table epochs has the value inf in its column value):', 2),
    ("UPDATE epochs SET value = 'abc'", 'report', "done/results.db is damaged (the table epochs has the value 'abc' in its column value)", 2),
    ("UPDATE epochs SET value = 'abc'", 'export', "done/results.db is damaged (the table epochs has the value 'abc' in its column value)", 2),
    ("UPDATE epochs SET value = 'abc'", 'claims', "done/results.db is damaged (the table epochs has the value 'abc' in its column value)", 2),
    ("UPDATE epochs SET value = 'abc'", 'power', "done/results.db is damaged (the table epochs has the value 'abc' in its column value)", 2),
    ("UPDATE epochs SET value = x'00ff'", 'report', "done/results.db is damaged (the table epochs has the value b'\\x00\\xff' in its column", 2),
    ('UPDATE epochs SET epoch = -1 WHERE epoch = 1', 'report', 'done/results.db is damaged (the table epochs has the value -1 in its column epoch): s', 2),
    ('UPDATE runs SET started = 1e300', 'report', 'done/results.db is damaged (the table runs has the value 1e+300 in its column started', 2),
    ('UPDATE runs SET started = 1e300', 'power', 'done/results.db is damaged (the table runs has the value 1e+300 in its column started', 2),
    ("UPDATE runs SET started = 'yesterday'", 'report', "done/results.db is damaged (the table runs has the value 'yesterday' in its column st", 2),
    ('UPDATE runs SET finished = -1e18', 'report', 'done/results.db is damaged (the table runs has the value -1e+18 in its column finishe', 2),
    ("UPDATE runs SET versions = '{'", 'report', "done/results.db is damaged (the table runs has the value '{' in its column versions):", 2),
    ("UPDATE runs SET versions = '[1]'", 'report', "done/results.db is damaged (the table runs has the value '[1]' in its column versions", 2),
    ('UPDATE trials SET finished = 1e300', 'report', 'done/results.db is damaged (the table trials has the value 1e+300 in its column finis', 2),
    ('UPDATE trials SET seconds = 9e999', 'report', 'done/results.db is damaged (the table trials has the value inf in its column seconds)', 2),
    ("UPDATE trials SET training = '['", 'report', "done/results.db is damaged (the table trials has the value '[' in its column training", 2),
    ("UPDATE trials SET training = '['", 'claims', "done/results.db is damaged (the table trials has the value '[' in its column training", 2),
    ("UPDATE trials SET trial_json = '{'", 'report', "done/results.db is damaged (the table trials has the value '{' in its column trial_js", 2),
    ("UPDATE trials SET trial_json = '{'", 'run', "model 'fake-org/fake' is not (completely) in the local cache, and HF_HUB_OFFLINE is s", 2),
    ("UPDATE trials SET reinit = 'x y'", 'report', "done/results.db is damaged (the table trials has the value 'x y' in its column reinit", 2),
    ("UPDATE trials SET reinit = 'x y'", 'power', "done/results.db is damaged (the table trials has the value 'x y' in its column reinit", 2),
    ("UPDATE trials SET seed = 's'", 'report', "done/results.db is damaged (the table trials has the value 's' in its column seed): s", 2),
    ("UPDATE trials SET seed = 's'", 'power', "done/results.db is damaged (the table trials has the value 's' in its column seed): s", 2),
    ('UPDATE trials SET task = NULL', 'report', 'done/results.db is damaged (the table trials has the value None in its column task):', 2),
    ("UPDATE trials SET model = x'ff'", 'report', "done/results.db is damaged (the table trials has the value b'\\xff' in its column mode", 2),
    ("UPDATE trials SET model = x'ff'", 'claims', "done/results.db is damaged (the table trials has the value b'\\xff' in its column mode", 2),
    ('UPDATE trials SET train_size = -5', 'report', 'done/results.db is damaged (the table trials has the value -5 in its column train_siz', 2),
    ("UPDATE points SET x = 'a'", 'report', "done/results.db is damaged (the table points has the value 'a' in its column x): save", 2),
    ("UPDATE points SET x = 'a'", 'power', "done/results.db is damaged (the table points has the value 'a' in its column x): save", 2),
    ('UPDATE points SET x = 9e999', 'report', 'done/results.db is damaged (the table points has the value inf in its column x): save', 2),
    ("UPDATE models SET depth = 'deep'", 'report', "done/results.db is damaged (the table models has the value 'deep' in its column depth", 2),
    ("UPDATE models SET depth = 'deep'", 'claims', "done/results.db is damaged (the table models has the value 'deep' in its column depth", 2),
    ('DELETE FROM points', 'report', 'no trial has finished in this study yet (it has no trials): run it with `whichlayers', 2),
    ('DELETE FROM epochs', 'report', 'no trial has finished in this study yet (15 done): run it with `whichlayers run`, or', 2),
    ("UPDATE tasks SET guess_scores = '['", 'report', "done/results.db is damaged (the table tasks has the value '[' in its column guess_sco", 2),
    ("UPDATE tasks SET class_counts = '3'", 'report', "done/results.db is damaged (the table tasks has the value '3' in its column class_cou", 2),
    ("UPDATE meta SET value = '[' WHERE key = 'notes'", 'status', "done/results.db is damaged (the table meta has the value '[' in its column value): sa", 2),
    ("UPDATE meta SET value = '[' WHERE key = 'notes'", 'report', "done/results.db is damaged (the table meta has the value '[' in its column value): sa", 2),
    ("UPDATE meta SET value = '[' WHERE key = 'data_statistics'", 'report', "done/results.db is damaged (the table meta has the value '[' in its column value): sa", 2),
    ('DROP TABLE tasks', 'report', 'done/results.db is not a valid results database (no such table: tasks): save what can', 2),
    ('DROP TABLE models', 'report', 'done/results.db is not a valid results database (no such table: models): save what ca', 2),
    ('DROP TABLE trials', 'status', 'done/results.db is a database, but not a results database of whichlayers: give anothe', 2),
    ('ALTER TABLE trials RENAME COLUMN seconds TO secs', 'report', 'done/results.db is not a valid results database (no such column: t.seconds): save wha', 2),
    ("UPDATE trials SET primary_metric = 'unheard'", 'report', 'no trial has finished in this study yet (15 done): run it with `whichlayers run`, or', 2),
    ("DELETE FROM models", "report", "has no row of the model 'fake-org/fake', which is lost: `whichlayers run done`", 2),
]
# fmt: on


@pytest.mark.parametrize(("command", "expected", "code"), COMMANDS)
def test_a_hostile_command(check, command, expected, code):
    check(*command.split(), expected=expected, code=code)


@pytest.mark.parametrize(("statement", "command", "expected", "code"), DATABASES)
def test_a_hostile_results_file(check, statement, command, expected, code):
    with closing(sqlite3.connect("done/results.db")) as db:
        db.execute(statement)
        db.commit()
    check(command, "done", expected=expected, code=code)


@pytest.mark.parametrize("command", ["status", "report", "export", "claims", "power"])
def test_a_damaged_page_is_reported_by_every_command(check, command):
    data = bytearray(Path("done/results.db").read_bytes())
    root = next(i for i in range(2, len(data) // 4096) if data[4096 * i] == 0x05)  # the inner page of a table
    data[4096 * root : 4096 * root + 2048] = b"\xa5" * 2048
    Path("done/results.db").write_bytes(data)
    check(command, "done", expected="save what can be read with `whichlayers repair done`", code=2)


@pytest.mark.parametrize("content", [b"", b"x", b"not a database" * 1000, b"SQLite format 3\0" + bytes(5000)])
@pytest.mark.parametrize("command", ["status", "report", "repair"])
def test_a_file_that_is_no_database(check, command, content):
    Path("done/results.db").write_bytes(content)
    check(command, "done", expected="done/results.db", code=2)


def test_the_message_for_a_newer_file_is_the_same_in_every_command(check):
    shutil.copytree("done", "other")
    with closing(sqlite3.connect("done/results.db")) as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
        db.commit()
    line = "error: done/results.db was written by a newer whichlayers"
    for command in (
        ["status"],
        ["report"],
        ["export"],
        ["claims"],
        ["power"],
        ["watch"],
        ["run"],
        ["compare", "other"],
    ):
        check(*command, "done", expected=line, code=2)


def test_equal_studies_agree(check):
    text = "The studies agree: in all 15 pairs of trials, both have exactly the same score."
    check("compare", "done", "again", "--out", "c.html", expected=text, code=0, may_write=True)
