"""The settings of linear probes, which results.db keeps in the JSON of a trial."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from whichlayers.results.connection import DATABASE, read_snapshot
from whichlayers.results.frames import STUDY_TRIALS
from whichlayers.trial import Trial, get_probe


def load_probe_settings(folder: Path) -> pd.DataFrame:
    """One row per trial of the study that trains a linear probe: trial_id, and a column per setting but the layer."""
    with read_snapshot(Path(folder) / DATABASE) as db:
        query = f"SELECT id, trial_json FROM trials WHERE kind = 'probe' AND id IN {STUDY_TRIALS}"
        rows = [
            {"trial_id": trial_id} | vars(get_probe(Trial.from_json(text)).canonical())
            for trial_id, text in db.execute(query)
        ]
    return (
        pd.DataFrame(rows).drop(columns="layer", errors="ignore")
        if rows
        else pd.DataFrame({"trial_id": []}, dtype=object)
    )
