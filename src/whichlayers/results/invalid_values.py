"""Values that whichlayers never writes to results.db: text among metrics, infinite scores, times far in the future.

Such values come from a damaged file or from another program. `find_invalid` names the first one, so that every command
reports it in the same way before it computes with it; `delete_invalid` removes their rows when a file is repaired.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from whichlayers.errors import WhichlayersError
from whichlayers.trial import Trial

# SQL conditions that hold for valid values of the column {c}
TEXT = "typeof({c}) = 'text'"
INTEGER = "typeof({c}) = 'integer'"
COUNT = "typeof({c}) = 'integer' AND {c} >= 0"
NUMBER = "typeof({c}) IN ('integer', 'real') AND abs({c}) <= 1.7976931348623157e308"  # not infinite
# seconds since 1970, up to the year 2255
TIME = "typeof({c}) IN ('integer', 'real') AND {c} BETWEEN 0 AND 9e9"
OBJECT = "CASE WHEN json_valid({c}) THEN json_type({c}) = 'object' ELSE 0 END"
LAYERS = "typeof({c}) = 'text' AND {c} NOT GLOB '*[^0-9 ]*'"  # "4 5 6"
NEURONS = (  # "3:117 0:5"
    "typeof({c}) = 'text' AND {c} NOT GLOB '*[^0-9: ]*' AND ' ' || {c} || ' ' NOT GLOB '*[: ][: ]*'"
    " AND length(replace({c}, ' ', '')) - length(replace({c}, ':', '')) = 1"
)


def _or_null(condition: str) -> str:
    return "({c} IS NULL OR " + condition + ")"


VALID: dict[str, dict[str, str]] = {
    "trials": {
        **dict.fromkeys(
            ("id", "model", "model_fingerprint", "task", "task_fingerprint", "head", "recipe"), TEXT
        ),
        "train_size": COUNT,
        "seed": INTEGER,
        "keep_layer_norm": "{c} IN (0, 1)",
        "trial_json": OBJECT,
        "status": "{c} IN ('pending', 'running', 'done', 'failed')",
        **dict.fromkeys(("reinit_lr_factor", "seconds", "share", "lr"), _or_null(NUMBER)),
        **dict.fromkeys(("started", "finished"), _or_null(TIME)),
        **dict.fromkeys(("error", "finetuned_on", "neurons", "ranking", "primary_metric"), _or_null(TEXT)),
        **dict.fromkeys(("reinit", "layer_order"), LAYERS),
        "epochs": _or_null(COUNT),
        "training": OBJECT,
        "adapter": _or_null(OBJECT),
        "top_neurons": _or_null(NEURONS),
    },
    "points": {"experiment": TEXT, "condition": TEXT, "x": NUMBER, "trial_id": TEXT},
    "epochs": {
        "trial_id": TEXT,
        "epoch": COUNT,
        "metric": TEXT,
        # the last loss of a trial that failed may be infinite
        "value": _or_null(
            NUMBER
            + " OR (typeof({c}) = 'real' AND trial_id IN (SELECT id FROM trials WHERE status != 'done'))"
        ),
    },
    "models": {
        **dict.fromkeys(("fingerprint", "name", "family"), TEXT),
        "revision": _or_null(TEXT),
        "depth": COUNT,
    },
    "tasks": {
        **dict.fromkeys(("fingerprint", "name", "kind", "metric"), TEXT),
        "train_rows": COUNT,
        **dict.fromkeys(("guess_scores", "class_counts"), _or_null(OBJECT)),
    },
    "runs": {
        "started": TIME,
        "finished": _or_null(TIME),
        **dict.fromkeys(("outcome", "host", "device", "command"), _or_null(TEXT)),
        "versions": _or_null(OBJECT),
    },
    "weight_changes": {
        "trial_id": TEXT,
        "name": TEXT,
        "layer": INTEGER,
        **dict.fromkeys(("frobenius", "spectral", "start_frobenius", "start_spectral"), _or_null(NUMBER)),
    },
    "meta": {
        "key": TEXT,
        "value": "CASE key WHEN 'notes' THEN CASE WHEN json_valid(value) THEN json_type(value) = 'array' ELSE 0 END"
        f" WHEN 'truncated' THEN {OBJECT.format(c='value')}"
        f" WHEN 'data_statistics' THEN {OBJECT.format(c='value')}"
        " ELSE 1 END",
    },
}
MAX_SHOWN = 40  # characters of a value in a message


@dataclass(frozen=True)
class InvalidValue:
    """A value that no whichlayers writes."""

    table: str
    column: str
    value: object

    def __str__(self) -> str:
        shown = repr(self.value)
        shown = shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + "..."
        return f"the table {self.table} has the value {shown} in its column {self.column}"


def find_invalid(connection: sqlite3.Connection) -> InvalidValue | None:
    """The first invalid value of the file; None if all values are valid.

    Reads every table once. Tables and columns that the file does not have, such as those of a later version, are
    left out.
    """
    for table, conditions in _present(connection):
        valid = " AND ".join(f"({condition})" for condition in conditions.values())
        row = connection.execute(
            f"SELECT {', '.join(conditions)} FROM {table} WHERE NOT coalesce({valid}, 0) LIMIT 1"
        ).fetchone()
        if row is None:
            continue
        for (column, condition), value in zip(conditions.items(), tuple(row), strict=True):
            found = connection.execute(
                f"SELECT 1 FROM {table} WHERE {column} IS ? AND NOT coalesce({condition}, 0) LIMIT 1",
                (value,),
            )
            if found.fetchone():
                return InvalidValue(table, column, value)
    return None


def lost_model(connection: sqlite3.Connection) -> str | None:
    """A model of the study that is not in the table `models`; None if all are. The next run adds it."""
    row = connection.execute(
        "SELECT model FROM trials WHERE model_fingerprint NOT IN (SELECT fingerprint FROM models)"
        " AND id IN (SELECT trial_id FROM points) LIMIT 1"
    ).fetchone()
    return row and row[0]


def unreadable_trials(connection: sqlite3.Connection) -> list[str]:
    """Ids of the trials whose settings cannot be read, or do not have this id. Slow: parses the JSON of every trial."""
    ids = []
    for trial_id, text in connection.execute("SELECT id, trial_json FROM trials"):
        try:
            intact = Trial.from_json(text).id == trial_id
        except (WhichlayersError, ValueError, TypeError, KeyError, AttributeError):
            intact = False
        if not intact:
            ids.append(trial_id)
    return ids


def delete_invalid(connection: sqlite3.Connection) -> None:
    """Delete all rows with an invalid value, and trials that cannot be read."""
    for table, conditions in _present(connection):
        valid = " AND ".join(f"({condition})" for condition in conditions.values())
        connection.execute(f"DELETE FROM {table} WHERE NOT coalesce({valid}, 0)")
    ids = [(trial_id,) for trial_id in unreadable_trials(connection)]
    connection.executemany("DELETE FROM trials WHERE id = ?", ids)


def _present(connection: sqlite3.Connection) -> Iterator[tuple[str, dict[str, str]]]:
    """The tables and columns of VALID that the file has, with the condition of each column."""
    for table, conditions in VALID.items():
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        present = {c: condition.format(c=c) for c, condition in conditions.items() if c in columns}
        if present:
            yield table, present
