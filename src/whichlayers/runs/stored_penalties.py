"""Restores the L1 and L2 penalties of word probes from results.db."""

from __future__ import annotations

from pathlib import Path

from whichlayers.results.db import ResultsDB
from whichlayers.runs.assets import penalties_folder
from whichlayers.trial import Trial

FOUND_PENALTIES = """
SELECT trial_json, MAX(value) FILTER (WHERE metric = 'l1'), MAX(value) FILTER (WHERE metric = 'l2')
FROM trials JOIN epochs ON id = trial_id
WHERE status = 'done' AND metric IN ('l1', 'l2') GROUP BY trial_id
"""


def restore_penalties(db: ResultsDB, cache: Path | None) -> None:
    """Write the penalties that finished trials found by grid search to the cache.

    Further word probes then use the same penalties, even if the cache was lost or the study moved to another machine.
    """
    folder = penalties_folder(cache)
    if folder is None:
        return
    rows = [(Trial.from_json(text), (l1, l2)) for text, l1, l2 in db.connection.execute(FOUND_PENALTIES)]
    searched = [row for row in rows if row[0].word_probe is not None and row[0].word_probe.lambdas is None]
    if searched:
        from whichlayers.probes.regularization import save_lambdas, search_key

        for key, penalties in {search_key(trial): penalties for trial, penalties in searched}.items():
            save_lambdas(folder, key, penalties)
