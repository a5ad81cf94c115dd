"""The documentation site builds without warnings, loads nothing from elsewhere, and has the generated reference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("material", reason="mkdocs-material is not installed")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Loaded(HTMLParser):
    """Addresses that a browser requests when it opens a page: of scripts, styles, images and fonts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio"):
            self.addresses += [given[name] for name in ("src", "srcset") if given.get(name)]
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.addresses.append(given["href"])


def test_nothing_is_loaded_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        for address in Loaded(page.read_text(encoding="utf-8")).addresses:
            assert not re.match(r"(https?:)?//", address), f"{page.name}: {address}"
    for style in site.rglob("*.css"):
        outside = re.findall(r"(?:@import|url\()\s*[\"']?(https?:)?//", style.read_text(encoding="utf-8"))
        assert outside == [], style


def test_the_reference_is_generated_from_the_code(site):
    import typer

    from whichlayers.cli import app

    commands = typer.main.get_command(app).commands
    page = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for name, command in commands.items():
        assert f'id="{name}"' in page
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert f"<code>{', '.join(parameter.opts)}</code>" in page
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in ("whichlayers.api.run", "whichlayers.api.Results.layers", "whichlayers.trial.Trial"):
        assert f'id="{name}"' in python


def test_links_name_pages_by_their_titles(site):
    for page in site.rglob("*.html"):
        assert not re.search(r"<a [^>]*>[\w/-]+\.md</a>", page.read_text(encoding="utf-8")), page


def test_images_outside_docs_are_part_of_the_site(site):
    page = (site / "gallery.html").read_text(encoding="utf-8")
    images = re.findall(r'<img[^>]* src="([^"]+)"', page)
    assert len(images) > 15
    for image in images:
        assert (site / image).is_file(), image
        assert f'<a href="{image}"><img' in page  # opens in full size, to be read on a phone


GALLERY = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")


def gallery_names() -> list[str]:
    """Figures in the first column of the gallery's table, in its order."""
    rows = GALLERY.partition("| figure |")[2].partition("\n\n")[0].splitlines()[2:]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_the_gallery_has_a_picture_of_every_figure_in_the_order_of_its_table():
    names = gallery_names()
    assert len(names) > 35
    pictures = [Path(image).stem for image in re.findall(r"!\[.+?\]\((.+?)\)", GALLERY)]
    assert set(names) - set(pictures) == set()
    sections = re.findall(r"^## (\w+)$", GALLERY, re.MULTILINE)
    assert sections == [name for name in names if name in sections]


def test_the_gallery_lists_every_figure():
    from whichlayers.experiments import DISPLAYS

    source = (ROOT / "src" / "whichlayers" / "plots" / "extra_figures.py").read_text(encoding="utf-8")
    extra = set(re.findall(r'ExtraFigure\(\s*"(\w+)"', source)) | {"recipes", "higher_lr", "layer_norm"}
    extra |= {
        "learning_curves",
        "every_epoch",
        "losses",
    }  # names chosen by a condition, and the page of watch
    extra |= {f"{name}_{cost}" for name in ("freeze", "adapt", "adapt_layers") for cost in ("time", "memory")}
    assert {*DISPLAYS, "layers", *extra} - set(gallery_names()) == set()


def test_study_files_of_the_gallery_are_complete(tmp_path):
    from whichlayers.study.study_file import load_study

    files = re.findall(r"^```toml\n(.*?)^```", GALLERY, re.DOTALL | re.MULTILINE)
    assert len(files) > 3
    for text in files:
        (tmp_path / "study.toml").write_text(text, encoding="utf-8")
        assert load_study(tmp_path / "study.toml").models
