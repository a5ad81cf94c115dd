"""The report in paper/: it builds, has four pages, and every number in it is computed."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = (ROOT / "paper" / "report.typ").read_text(encoding="utf-8")
# numbers of the text that are settings, names, or the papers' own
STATED = """
2e-5 batches of 8 500 examples 5,000 SST-2 MPNet all-mpnet-base-v2 12 layers 512 384 dimensions BERT H200 batch size 8
2020 2021 2019 CS224N 50 trials 3 trials 95% 90% layers 3 to 5 k = 4 k = 3 1e-3 sd 0.02 2.667 n = 3 n = 50 layer 12
5 times 5e-5 L2 0 to 1 T1 T2 T5 T7 T9 T10 S1 S3 50,000 float32 bfloat16
"""


def build_module():
    spec = importlib.util.spec_from_file_location("paper_build", ROOT / "paper" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prose():
    """The text of the report, without code, settings of the layout and values from numbers.json."""
    body = SOURCE.partition("#place(top")[2]
    body = re.sub(r"#n\.\w+|`[^`]*`|image\([^)]*\)|<\w+>|@\w+", "", body)
    body = re.sub(
        r"#(?:v|h|pad|text|set \w+)\([^)]*\)|data-table\(\([^)]*\)|row\.\w+\(\d\)|rows: \d|columns: \d",
        "",
        body,
    )
    return re.sub(r"(?:row-gutter|clearance|size|hanging-indent|spacing): ?[\d.]+\w*", "", body)


def test_every_number_is_computed_or_a_setting():
    stated = set(re.findall(r"\d[\d,.]*\d|\d", STATED))
    found = re.findall(r"\d[\d,.]*\d|\d", prose())
    assert [number for number in found if number not in stated] == []
    assert len(found) < 90


def test_the_report_speaks_of_protocols_on_other_models():
    assert "protocols on other models" in SOURCE
    assert "not testable here" in SOURCE
    assert not re.search(r"reproduc", SOURCE, re.IGNORECASE)


def test_it_builds_with_four_pages_and_its_own_fonts(tmp_path):
    pytest.importorskip("typst")
    pdf = build_module().build(tmp_path).read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 4
    fonts = {name.rpartition(b"+")[2] for name in re.findall(rb"/BaseFont\s*/([^\s/]+)", pdf)}
    assert fonts
    assert all(font.startswith((b"Libertinus", b"DejaVuSansMono", b"NewCM")) for font in fonts)


def test_without_typst_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "typst", None)
    with pytest.raises(SystemExit, match="pip install"):
        build_module().build(tmp_path)
