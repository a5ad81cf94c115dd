"""whichlayers: find out which layers of a pretrained language model a task needs.

    import whichlayers

    results = whichlayers.run("my-study.toml", "my-study")
    results.frame()          # one row per point and trial, as a pandas DataFrame

Heavy libraries are imported only when they are needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from whichlayers.version import __version__

if TYPE_CHECKING:
    from whichlayers.api import Results, load, predict, run
    from whichlayers.deploy.text_model import load_model
    from whichlayers.errors import WhichlayersError
    from whichlayers.study.study_file import Study, load_study
    from whichlayers.trial import Point, Probe, Surgery, Training, Trial, WordProbe


_MODULES = {
    "CarryoverError": "whichlayers.errors",  # the name in version 0.1
    "WordProbe": "whichlayers.trial",
    "WhichlayersError": "whichlayers.errors",
    "Point": "whichlayers.trial",
    "Probe": "whichlayers.trial",
    "Results": "whichlayers.api",
    "Study": "whichlayers.study.study_file",
    "Surgery": "whichlayers.trial",
    "Training": "whichlayers.trial",
    "Trial": "whichlayers.trial",
    "load": "whichlayers.api",
    "load_model": "whichlayers.deploy.text_model",
    "load_study": "whichlayers.study.study_file",
    "predict": "whichlayers.api",
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
    "WordProbe",
    "__version__",
    "load",
    "load_model",
    "load_study",
    "predict",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'whichlayers' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
