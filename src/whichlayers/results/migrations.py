"""Older schema versions of results.db: how a file gets the columns that later versions added.

`migrate` changes the file. `show_as_current` leaves it as it is and shows the columns on one connection, for reading.
Both use ADDED_COLUMNS, the columns that each version added to the table `trials`, and ADDED_TASK_COLUMNS, those of
`tasks`, which are NULL in older files until a run of the study fills them. The expressions refer to columns of
version 1 and use the stored names of trials (see `trial_json.STORED_NAMES`). Never change them: they describe
old files.
"""

from __future__ import annotations

import sqlite3

from whichlayers.results.schema import SCHEMA_VERSION, WEIGHT_CHANGES, statements
from whichlayers.version import __version__

OLDEST_VERSION = 1  # older files are refused


def _stored(path: str) -> str:
    """The SQL expression for a value in the JSON of a trial."""
    return f"json_extract(trial_json, '$.{path}')"


def _layers(path: str) -> str:
    """The SQL expression for a list of layers in the JSON of a trial, as text: "4 5 6"."""
    return f"replace(trim(coalesce({_stored(path)}, ''), '[]'), ',', ' ')"


# version -> column -> type, expression
ADDED_COLUMNS: dict[int, dict[str, tuple[str, str]]] = {
    2: {
        "kind": (
            "TEXT",
            f"CASE WHEN {_stored('words')} IS NOT NULL THEN 'word_probe'"
            f" WHEN {_stored('probe')} IS NOT NULL THEN 'probe' ELSE 'finetune' END",
        ),
        "primary_metric": (
            "TEXT",
            f"coalesce({_stored('words.ask')},"
            " (SELECT tasks.metric FROM tasks WHERE tasks.fingerprint = task_fingerprint))",
        ),
        "finetuned_on": ("TEXT", f"CASE WHEN {_stored('words')} IS NOT NULL THEN {_stored('task')} END"),
        "neurons": ("TEXT", _stored("words.neurons")),
        "share": ("REAL", _stored("words.share")),
        "ranking": ("TEXT", _stored("words.ranking")),
        "reinit": ("TEXT", _layers("surgery.reinit")),
        "layer_order": ("TEXT", _layers("surgery.order")),
        "epochs": ("INTEGER", _stored("training.epochs")),
        "lr": ("REAL", _stored("training.lr")),
        "training": ("TEXT", f"json_remove({_stored('training')}, '$.lr_factors')"),
    },
    3: {
        f"seed_{component}": ("INTEGER", "NULL")  # one seed determined all
        for component in ("subset", "order", "init", "head", "dropout")
    },
    4: {  # adapters and re-initialized poolers are new; costs were not measured
        "reinit_pooler": ("INTEGER", "0"),
        "adapter": ("TEXT", "NULL"),
        "trained_parameters": ("INTEGER", "NULL"),
        "memory": ("REAL", "NULL"),
    },
    5: {"top_neurons": ("TEXT", "NULL")},  # was not stored
}
# version -> column of `tasks` -> type
ADDED_TASK_COLUMNS: dict[int, dict[str, str]] = {
    2: {},
    3: {"guess_scores": "TEXT", "class_counts": "TEXT"},
}


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Migrate a file of an older version to the current one, within the open transaction."""
    for statement in statements(WEIGHT_CHANGES):  # the first files of version 1 do not have it
        connection.execute(statement)
    for later in range(version + 1, SCHEMA_VERSION + 1):
        for name, (sql_type, _) in ADDED_COLUMNS.get(later, {}).items():
            connection.execute(f"ALTER TABLE trials ADD COLUMN {name} {sql_type}")
        for name, sql_type in ADDED_TASK_COLUMNS.get(later, {}).items():
            connection.execute(f"ALTER TABLE tasks ADD COLUMN {name} {sql_type}")
    fill_added_columns(connection, version)
    meta = {"schema_version": str(SCHEMA_VERSION), "migrated_by": __version__}
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta.items())


def fill_added_columns(connection: sqlite3.Connection, version: int) -> None:
    """Compute the columns of `trials` that versions after `version` added."""
    for later in range(version + 1, SCHEMA_VERSION + 1):
        if columns := ADDED_COLUMNS.get(later, {}):
            values = ", ".join(f"{name} = {expression}" for name, (_, expression) in columns.items())
            connection.execute(f"UPDATE trials SET {values}")


def show_as_current(connection: sqlite3.Connection, version: int) -> None:
    """Make a read-only connection to a file of an older version show the current columns.

    Temporary views `trials` and `tasks`, which belong to the connection, take the place of the tables. They compute the
    columns when they are read, need no memory or disk space, and show what an older whichlayers still writes. An empty
    view `weight_change` is added to the first files of version 1, which do not have it.
    """
    added = {
        name: expression
        for later in range(version + 1, SCHEMA_VERSION + 1)
        for name, (_, expression) in ADDED_COLUMNS.get(later, {}).items()
    }
    if added:
        columns = ", ".join(f"{expression} AS {name}" for name, expression in added.items())
        connection.execute(f"CREATE TEMP VIEW trials AS SELECT rowid, *, {columns} FROM main.trials")
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'weight_change'").fetchone():
        columns = "NULL AS trial_id, NULL AS name, NULL AS layer, NULL AS kind, NULL AS value"
        connection.execute(f"CREATE TEMP VIEW weight_change AS SELECT {columns} WHERE FALSE")
    empty = [n for later in range(version + 1, SCHEMA_VERSION + 1) for n in ADDED_TASK_COLUMNS.get(later, {})]
    if empty:
        columns = ", ".join(f"NULL AS {name}" for name in empty)
        connection.execute(f"CREATE TEMP VIEW tasks AS SELECT *, {columns} FROM main.tasks")
