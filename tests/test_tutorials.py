"""Every command and script of the pages of docs/ works, in the order of the page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from reader import ROOT, enter_reader_folder, make_reader_folder, run_command

DOCS = ROOT / "docs"
NEEDS_STUDY = ("how-to.md", "gallery.md", "tutorials/reading-the-report.md", "reference/python.md")
NEEDS_STUDY += (
    "recommend.md",
    "report.md",
    "scaling.md",
    "study-file.md",
    "claims.md",
    "reproduction.md",
    "results.md",
)
PAGES = ("index.md", "statistics.md", *NEEDS_STUDY, "tutorials/own-task.md", "tutorials/paper-protocol.md")
PAGES += ("tutorials/adapters.md", "tutorials/smaller-model.md")
FOLDERS = {  # further study folders of a page
    "claims.md": {
        "bert": ROOT / "results" / "carryover-bert-small",
        "mpnet": ROOT / "results" / "all-mpnet-base-v2",
        "more-of-mpnet": ROOT / "results" / "all-mpnet-base-v2-recipes",
    },
    "reproduction.md": {"mine": Path("my-study")},
}


@pytest.fixture(scope="module")
def with_study(tmp_path_factory) -> Path:
    """A reader's folder with the study my-study, which some pages assume."""
    folder = make_reader_folder(tmp_path_factory.mktemp("pages") / "reader")
    options = "--model ./my-model --train train.csv --dev dev.csv --text text --label label"
    with pytest.MonkeyPatch.context() as patch:
        enter_reader_folder(folder, patch)
        run_command(f"whichlayers new my-study.toml {options}", patch)
        run_command("whichlayers run my-study.toml", patch)
    return folder


@pytest.mark.parametrize("name", PAGES)
def test_everything_on_the_page_works_in_its_order(name, with_study, tmp_path, monkeypatch, capsys):
    if name in NEEDS_STUDY:
        shutil.copytree(with_study, tmp_path / "reader", symlinks=True)
        for folder, target in FOLDERS.get(name, {}).items():
            (tmp_path / "reader" / folder).symlink_to(target)
    else:
        make_reader_folder(tmp_path / "reader")
    enter_reader_folder(tmp_path / "reader", monkeypatch)
    page = (DOCS / name).read_text(encoding="utf-8")
    variables: dict = {"__name__": "__main__"}
    found = re.findall(r"^```(sh|python)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert found
    for language, block in found:
        if language == "python":
            exec(compile(block, name, "exec"), variables)
            continue
        for command in filter(None, block.splitlines()):
            with monkeypatch.context() as patch:
                run_command(command, patch)


def test_every_new_page_with_code_is_run():
    """Pages of docs/ with commands or scripts are run here."""
    for path in DOCS.rglob("*.md"):
        name = path.relative_to(DOCS).as_posix()
        if re.search(r"^```(sh|python)\n", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert name in PAGES, name
