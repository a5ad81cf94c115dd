"""carryover: what a pretrained language model carries over to a task, layer by layer.

    import carryover

    results = carryover.run("my-study.toml", "my-study")
    results.frame()          # one row a point and trial, as a pandas frame

Nothing heavy is imported until it is needed.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carryover.api import Results, load, run
    from carryover.study.file import Study, load_study
    from carryover.trial import CarryoverError, Point, Probe, Surgery, Training, Trial


def _source_version() -> str:
    """As pyproject.toml says it: 0.1.0+source."""
    import tomllib

    try:
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
        return f"{project['project']['version']}+source"
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return "0+unknown"


try:
    __version__ = version("carryover")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = _source_version()

_HOMES = {
    "CarryoverError": "carryover.trial",
    "Point": "carryover.trial",
    "Probe": "carryover.trial",
    "Results": "carryover.api",
    "Study": "carryover.study.file",
    "Surgery": "carryover.trial",
    "Training": "carryover.trial",
    "Trial": "carryover.trial",
    "load": "carryover.api",
    "load_study": "carryover.study.file",
    "run": "carryover.api",
}

__all__ = [
    "CarryoverError",
    "Point",
    "Probe",
    "Results",
    "Study",
    "Surgery",
    "Training",
    "Trial",
    "__version__",
    "load",
    "load_study",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'carryover' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
