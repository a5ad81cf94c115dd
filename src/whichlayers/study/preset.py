"""Presets: studies included in the package, such as the demo and the experiments of the papers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from whichlayers.config.errors import close_match
from whichlayers.errors import WhichlayersError
from whichlayers.study.study_file import Study


def list_presets() -> dict[str, str]:
    """Names of the presets, such as tamkin2020/incremental, with their descriptions."""
    return {name: load_preset(name).description for name in sorted(_preset_files())}


def preset_names() -> list[str]:
    """Names of the presets, without reading them."""
    return sorted(_preset_files())


def load_preset(name: str) -> Study:
    """The study of a preset. Raises a `WhichlayersError` for an unknown name."""
    return Study.from_toml(preset_text(name), Path.cwd(), file=f"{name}.toml")


def preset_text(name: str) -> str:
    """The study file of a preset, with its comments. Raises a `WhichlayersError` for an unknown name."""
    presets = _preset_files()
    if name not in presets:
        suggestion = close_match(name, presets)
        raise WhichlayersError(f"no preset {name};{suggestion} available: {', '.join(sorted(presets))}")
    return presets[name].read_text(encoding="utf-8")


def _preset_files() -> dict[str, Traversable]:
    return dict(_toml_files(files("whichlayers.study") / "presets", ""))


def _toml_files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    """Pairs of name, without .toml, and file, for all TOML files below `folder`."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _toml_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield prefix + entry.name.removesuffix(".toml"), entry
