"""Add trials to a study. Existing trials keep their seeds, and therefore their ids and results."""

from __future__ import annotations

from typing import Any

from whichlayers.config.sections import PerSize
from whichlayers.study.study_file import Study

COUNT_KEYS = ("trials", "baseline_trials")


def with_more_trials(study: Study, more: int) -> Study:
    """A copy of the study with `more` additional trials of every point, each with a new seed."""
    experiments = [
        experiment.model_copy(
            update=_add_to_counts({k: getattr(experiment, k, None) for k in COUNT_KEYS}, more)
        )
        for experiment in study.experiments
    ]
    extended = Study(**(study.settings() | {"trials": _add(study.trials, more), "experiments": experiments}))
    extended._file = study._file
    return extended


def _add_to_counts(counts: dict[str, PerSize | None], more: int) -> dict[str, Any]:
    """The counts that are not None, each increased by `more`."""
    return {key: _add(count, more) for key, count in counts.items() if count is not None}


def _add(count: PerSize, more: int) -> PerSize:
    """The count, increased by `more` at every training size."""
    return PerSize(count.default + more, tuple((limit, number + more) for limit, number in count.steps))
