"""A new experiment takes one file and its registration: it is planned, run, exported and reported like the others."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_study import write_model

import whichlayers

EXPERIMENT = '''
"""The reversal experiment: put the first k layers in reverse order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from whichlayers.experiments.base import (
    ALL_PRETRAINED,
    CountList,
    DepthError,
    FinetuningExperiment,
    Variant,
    layer_range,
)
from whichlayers.experiments.display import Display


class Reversal(FinetuningExperiment):
    """Put the first k layers in reverse order."""

    kind: Literal["reversal"] = "reversal"
    displays = (
        Display(
            name="reversal",
            title="First layers in reverse order",
            x_label="layers reversed (k)",
            description="The first k layers are put in reverse order and the whole model is finetuned.",
            position="k = {:g}".format,
            conditions={"": "reversed layers"},
        ),
    )
    counts: CountList = Field(default=(2, 3), description="Values of k.")

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        for k in self.counts:
            if k > depth:
                yield DepthError("counts", k, f"1 to {depth} layers can be reversed")

    def variants(self, depth: int) -> Iterator[Variant]:
        yield Variant(ALL_PRETRAINED, 0, is_baseline=True)
        for k in self.counts:
            yield Variant("", k, order=(*layer_range(1, k)[::-1], *layer_range(k + 1, depth)))

    def summary(self) -> str:
        return "put the first k layers in reverse order"
'''.lstrip()
REGISTRATION = {  # lines of experiments/__init__.py -> the same lines with the new kind
    "from whichlayers.experiments.selectivity import Selectivity\n": (
        "from whichlayers.experiments.reversal import Reversal\n"
        "from whichlayers.experiments.selectivity import Selectivity\n"
    ),
    '    "permutation": Permutation,\n': '    "permutation": Permutation,\n    "reversal": Reversal,\n',
}
STUDY = """
name = "reversed"
models = ["./model"]
tasks = [{{ name = "counting", train = "train.tsv", dev = "dev.tsv", text = "text", label = "count" }}]
experiments = [{{ kind = "reversal", counts = [{counts}] }}]
train_sizes = [12]
trials = 3
training = {{ epochs = 1, max_length = 32, lr = 1e-3 }}
"""
COMMANDS = """
import sys
from whichlayers.cli import app
for command in sys.argv[1:]:
    print("$", command, flush=True)
    try:
        app(command.split(), standalone_mode=False)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a copy of the package that has the new experiment, a model of three layers and a task."""
    folder = tmp_path_factory.mktemp("new_experiment")
    package = folder / "src" / "whichlayers"
    shutil.copytree(Path(whichlayers.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "experiments" / "reversal.py").write_text(EXPERIMENT, encoding="utf-8")
    registry = package / "experiments" / "__init__.py"
    text = registry.read_text(encoding="utf-8")
    for lines, extended in REGISTRATION.items():
        assert text.count(lines) == 1
        text = text.replace(lines, extended)
    registry.write_text(text, encoding="utf-8")
    write_model(folder / "model", ["a", "b"], layers=3)
    texts = [" ".join("ab"[i >> bit & 1] for bit in range(5)) for i in range(32)]
    rows = [f"{text}\t{text.count('a') / 2}" for text in texts]
    for name, chosen in (("train", rows[::2]), ("dev", rows[1::2])):
        (folder / f"{name}.tsv").write_text("\n".join(["text\tcount", *chosen]) + "\n", encoding="utf-8")
    return folder


def call(folder: Path, *commands: str) -> list[str]:
    """Run commands with the extended package, and return the output of each."""
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-u", "-c", COMMANDS, *commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    outputs = re.split(r"^\$ .*\n", done.stdout, flags=re.MULTILINE)[1:]
    assert len(outputs) == len(commands)
    return outputs


@pytest.fixture(scope="module")
def outputs(folder) -> list[str]:
    """Output of plan, run, export and report of a study with the experiment, which write into `folder`/reversed.

    And of plan for two studies with mistakes. One process runs them all, since its imports take longest.
    """
    study = STUDY.format(counts="2, 3")
    (folder / "study.toml").write_text(study, encoding="utf-8")
    wrong = study.replace('kind = "reversal"', 'kind = "reversl"')
    (folder / "wrong.toml").write_text(wrong, encoding="utf-8")
    (folder / "deep.toml").write_text(STUDY.format(counts="4"), encoding="utf-8")
    return call(
        folder,
        "plan study.toml --no-measure",
        "run study.toml --device cpu --workers 0 --folder reversed",
        "export reversed",
        "report reversed",
        "plan wrong.toml --no-measure",
        "plan deep.toml --no-measure",
    )


def test_the_plan_describes_and_counts_it(outputs):
    assert "put the first k layers in reverse order" in " ".join(outputs[0].split())
    assert re.search(
        r"^total +9 ", outputs[0], re.MULTILINE
    )  # 3 trials of the baseline, of k = 2 and of k = 3


def test_the_exported_table_has_its_points(folder, outputs):
    with (folder / "reversed" / "results.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["experiment"] == "reversal"]
    cells = {(row["condition"], float(row["x"]), row["order"]) for row in rows}
    assert cells == {("all pretrained", 0, ""), ("", 2, "2 1 3"), ("", 3, "3 2 1")}
    assert len(rows) == 9
    assert all(-1 <= float(row["pearson"]) <= 1 for row in rows)


def test_the_report_shows_it_with_title_axis_label_caption_and_findings(folder, outputs):
    page = (folder / "reversed" / "report.html").read_text(encoding="utf-8")
    assert re.search(r"<h2[^>]*>\s*First layers in reverse order", page)
    assert '"x":"layers reversed (k)"' in page.replace('": ', '":')
    caption = "The first k layers are put in reverse order and the whole model is finetuned. Means with 95% t"
    assert caption in page
    assert re.search(r"12 examples, reversed layers: \S+ of 2 points (is|are) ", page)
    assert re.search(r"The largest difference is at k = [23]:", page)


def test_it_has_figure_files_and_rows_in_the_summary(folder, outputs):
    figures = folder / "reversed" / "figures"
    assert {path.name for path in figures.glob("reversal.*")} == {
        f"reversal.{s}" for s in ("png", "svg", "pdf")
    }
    summary = (folder / "reversed" / "summary.csv").read_text(encoding="utf-8")
    assert summary.count("\nreversal,") == 3


def test_a_kind_that_does_not_exist_and_a_depth_error_are_reported(outputs):
    *_, wrong, deep = outputs
    assert "did you mean `reversal`" in wrong
    assert "1 to 3 layers can be reversed" in " ".join(deep.split())
