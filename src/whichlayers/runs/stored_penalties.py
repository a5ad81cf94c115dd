"""What the answers of a study say of how it was asked, for a run that goes on from them alone, on another machine."""

from __future__ import annotations

from pathlib import Path

from whichlayers.results.db import Store
from whichlayers.runs.assets import penalties_folder
from whichlayers.trial import Trial

FOUND = """
SELECT trial_json, MAX(value) FILTER (WHERE metric = 'l1'), MAX(value) FILTER (WHERE metric = 'l2')
FROM trials JOIN epochs ON id = trial_id
WHERE status = 'done' AND metric IN ('l1', 'l2') GROUP BY trial_id
"""


def recall_penalties(store: Store, cache: Path | None) -> None:
    """Further questions about words are asked with the L1 and L2 that the search found for those answered."""
    folder = penalties_folder(cache)
    if folder is None:
        return
    rows = [(Trial.from_json(text), (l1, l2)) for text, l1, l2 in store.connection.execute(FOUND)]
    searched = [row for row in rows if row[0].word_probe is not None and row[0].word_probe.lambdas is None]
    if searched:
        from whichlayers.probes.regularization import key_of, remember

        for key, found in {key_of(trial): found for trial, found in searched}.items():
            remember(folder, key, found)
