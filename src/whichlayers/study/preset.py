"""Studies that come with whichlayers: the demo and the experiments of the papers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from whichlayers.config.errors import close_match
from whichlayers.errors import WhichlayersError
from whichlayers.study.file import Study


def list_presets() -> dict[str, str]:
    """Names, such as tamkin2020/incremental, with a line on each."""
    return {name: load_preset(name).description for name in sorted(_found())}


def load_preset(name: str) -> Study:
    return Study.from_toml(preset_text(name), Path.cwd(), file=f"{name}.toml")


def preset_text(name: str) -> str:
    """The preset's file as it is, comments included."""
    found = _found()
    if name not in found:
        near = close_match(name, found)
        raise WhichlayersError(f"no preset {name};{near} the presets are: {', '.join(sorted(found))}")
    return found[name].read_text(encoding="utf-8")


def _found() -> dict[str, Traversable]:
    return dict(_walk(files("whichlayers.study") / "presets", ""))


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield prefix + entry.name.removesuffix(".toml"), entry
