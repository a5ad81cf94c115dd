"""whichlayers: what a pretrained language model carries over to a task, layer by layer.

    import whichlayers

    results = whichlayers.run("my-study.toml", "my-study")
    results.frame()          # one row a point and trial, as a pandas frame

Nothing heavy is imported until it is needed.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whichlayers.api import Results, load, run
    from whichlayers.errors import WhichlayersError
    from whichlayers.study.file import Study, load_study
    from whichlayers.trial import Point, Probe, Surgery, Training, Trial


def _source_version() -> str:
    """As pyproject.toml says it: 0.1.0+source."""
    import tomllib

    try:
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
        return f"{project['project']['version']}+source"
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return "0+unknown"


try:
    __version__ = version("whichlayers")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = _source_version()

_HOMES = {
    "CarryoverError": "whichlayers.errors",  # the name in version 0.1
    "WordProbe": "whichlayers.trial",
    "WhichlayersError": "whichlayers.errors",
    "Point": "whichlayers.trial",
    "Probe": "whichlayers.trial",
    "Results": "whichlayers.api",
    "Study": "whichlayers.study.file",
    "Surgery": "whichlayers.trial",
    "Training": "whichlayers.trial",
    "Trial": "whichlayers.trial",
    "load": "whichlayers.api",
    "load_study": "whichlayers.study.file",
    "run": "whichlayers.api",
}

__all__ = [
    "Point",
    "Probe",
    "Results",
    "Study",
    "Surgery",
    "Training",
    "Trial",
    "WhichlayersError",
    "__version__",
    "load",
    "load_study",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'whichlayers' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
