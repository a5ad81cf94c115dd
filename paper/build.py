"""Build the report: numbers and figures from results/, then the PDF with Typst. `make paper` runs this.

    python paper/build.py           # build/paper/report.pdf
    python paper/build.py --png     # also one PNG per page

Typst uses the fonts inside its own package, so that the PDF is the same on every machine and nothing is downloaded.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

PAPER = Path(__file__).parent
sys.path.insert(0, str(PAPER))

OUT = PAPER.parent / "build" / "paper"


def build(folder: Path, png: bool = False) -> Path:
    """Write the sources, numbers.json, the figures and report.pdf into a folder; return the path of the PDF.

    Args:
        folder: Created if it does not exist.
        png: Whether to write one page-N.png per page as well.
    """
    try:
        import typst
    except ImportError:
        raise SystemExit(
            "the report needs Typst: pip install 'whichlayers[paper]', or pip install typst"
        ) from None
    from paper_numbers import draw_figures, numbers

    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(PAPER / "report.typ", folder / "report.typ")
    text = json.dumps(numbers(), indent=1, ensure_ascii=False)
    (folder / "numbers.json").write_text(text, encoding="utf-8")
    draw_figures(folder)
    source, pdf = str(folder / "report.typ"), folder / "report.pdf"
    typst.compile(source, output=str(pdf), root=str(folder), ignore_system_fonts=True)
    if png:
        pages = str(folder / "page-{p}.png")
        typst.compile(source, output=pages, root=str(folder), format="png", ppi=150, ignore_system_fonts=True)
    return pdf


if __name__ == "__main__":
    print(build(OUT, png="--png" in sys.argv[1:]))
