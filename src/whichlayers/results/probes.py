"""The linear probes of a study, which results.db keeps in the JSON of their trials."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from whichlayers.results.connection import DATABASE, read_snapshot
from whichlayers.results.frames import STUDY_TRIALS
from whichlayers.trial import Probe, Trial, get_probe


def load_probes(folder: Path) -> dict[str, Probe]:
    """The probe of each trial of the study that trains one, in its normal form, by trial id."""
    with read_snapshot(Path(folder) / DATABASE) as db:
        query = f"SELECT id, trial_json FROM trials WHERE kind = 'probe' AND id IN {STUDY_TRIALS}"
        return {id_: get_probe(Trial.from_json(text)).canonical() for id_, text in db.execute(query)}


def load_probe_settings(folder: Path) -> pd.DataFrame:
    """One row per trial of `load_probes`: trial_id, and a column per setting but the layer."""
    rows = [{"trial_id": trial_id} | vars(probe) for trial_id, probe in load_probes(folder).items()]
    return pd.DataFrame(rows or {"trial_id": []}, dtype=object).drop(columns="layer", errors="ignore")
