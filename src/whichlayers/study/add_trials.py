"""A study with more trials: the ones that it has keep their seeds, and so their ids and results."""

from __future__ import annotations

from typing import Any

from whichlayers.config.sections import PerSize
from whichlayers.study.file import Study

COUNTS = ("trials", "baseline_trials")


def with_more_trials(study: Study, more: int) -> Study:
    """So many more repetitions of every point, in all experiments: each on a seed that none had before."""
    experiments = [
        experiment.model_copy(update=_raised({k: getattr(experiment, k, None) for k in COUNTS}, more))
        for experiment in study.experiments
    ]
    raised = Study(**(study.settings() | {"trials": _plus(study.trials, more), "experiments": experiments}))
    raised._file = study._file
    return raised


def _raised(counts: dict[str, PerSize | None], more: int) -> dict[str, Any]:
    return {key: _plus(count, more) for key, count in counts.items() if count is not None}


def _plus(count: PerSize, more: int) -> PerSize:
    return PerSize(count.default + more, tuple((limit, number + more) for limit, number in count.steps))
