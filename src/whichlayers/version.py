"""The version of the package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def _source_version() -> str:
    """The version in pyproject.toml of a source tree that is not installed: "0.1.0+source"."""
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
