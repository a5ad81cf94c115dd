"""Every command and script in README.md works: on a random model and a few rows, in the order of the page.

A command without a handler here fails the test, so that new commands are tested, too.
"""

from __future__ import annotations

import csv
import itertools
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import whichlayers
from whichlayers.cli import app
from whichlayers.runs import estimate, machine, run_study

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORDS = ["the", "a", "film", "plot", "was", "is", "very", "not"]
KIND, UNKIND = ["good", "great", "fine"], ["bad", "dull", "poor"]
# options that make a command of the page small enough for a test; the last of two equal options counts
SMALLER = {
    "plan tamkin2020": ["--model", "./my-model", "--sizes", "16", "--trials", "1"],
    "run tamkin2020": ["--model", "./my-model", "--sizes", "16", "--trials", "1", "--tasks", "SST-2"],
    "run my-study.toml": ["--sizes", "32"],
    "own_task.py": ["--size", "16", "--trials", "2", "--epochs", "1"],
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def smaller(command: str) -> list[str]:
    return next((more for part, more in SMALLER.items() if part in command), [])


def replaced(arguments: list[str], options: list[str]) -> list[str]:
    """The arguments with these options, which replace options of the same name."""
    names = set(options[::2])
    pairs = zip(arguments, [None, *arguments], strict=False)
    return [argument for argument, previous in pairs if names.isdisjoint((argument, previous))] + options


@pytest.fixture
def reader_folder(tmp_path) -> Path:
    """A folder as a reader of the page has it: examples/, my-model, train.csv, dev.csv and glue_data."""
    folder = tmp_path / "reader"
    save_model(folder / "my-model")
    for split, rows in (("train", 240), ("dev", 24)):
        write(folder / f"{split}.csv", ",", [("text", "label"), *examples(rows)])
    (folder / "examples").symlink_to(ROOT / "examples")
    glue = folder / "glue_data"
    for split, rows in (("train", 40), ("dev", 12)):
        texts = [(text, str(int(label == "yes"))) for text, label in examples(rows)]
        write(glue / "SST-2" / f"{split}.tsv", "\t", [("sentence", "label"), *texts])
        write(glue / "CoLA" / f"{split}.tsv", "\t", [("src", label, "", text) for text, label in texts])
        pairs = [
            (str(i), "was it good", text, "entailment" if label == "1" else "not_entailment")
            for i, (text, label) in enumerate(texts)
        ]
        write(glue / "QNLI" / f"{split}.tsv", "\t", [("index", "question", "sentence", "label"), *pairs])
    return folder


def examples(rows: int) -> list[tuple[str, str]]:
    middles = itertools.cycle(itertools.product(("film", "plot"), ("was", "is"), ("", "very ", "not ")))
    adjectives = itertools.cycle([(w, "yes") for w in KIND] + [(w, "no") for w in UNKIND])
    combinations = zip(range(rows), middles, adjectives, strict=False)
    return [
        (f"the {noun} {verb} {more}{word}", label) for _, (noun, verb, more), (word, label) in combinations
    ]


def write(path: Path, delimiter: str, rows: list[tuple[str, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)


def save_model(folder: Path) -> None:
    """Write a random BERT of two layers with a word-level tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS, *KIND, *UNKIND])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(vocabulary), **shape)).save_pretrained(folder)


@pytest.fixture
def in_reader_folder(reader_folder, monkeypatch):
    """Change to the reader's folder; train in this process, on the CPU."""
    monkeypatch.chdir(reader_folder)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("WHICHLAYERS_CACHE", raising=False)
    real = run_study.run
    here = {"workers": 0, "device": "cpu"}
    monkeypatch.setattr(run_study, "run", lambda *a, **o: real(*a, **(o | here)))
    monkeypatch.setattr(estimate, "time_stacks", partial(estimate.time_stacks, seconds=2))
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)  # more threads would slow down parallel tests
    return reader_folder


def test_everything_on_the_page_works_in_its_order(in_reader_folder, monkeypatch, capsys):
    """One test, because commands use the files of earlier ones."""
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        if language == "python":
            run_python(block)
            assert re.search(r"^2\.0 +[01]\.\d+", capsys.readouterr().out, re.MULTILINE)
            continue
        for command in filter(None, block.splitlines()):
            with monkeypatch.context() as patch:
                run_command(command, patch)
            if "own_task" in command:
                assert re.search(r"accuracy: 0\.\d+ with all 2 layers", capsys.readouterr().out)
    check_columns_of_results_md()
    check_snippets_of_results_md()


def run_python(script: str) -> None:
    small = script.replace("train_sizes=[240]", "train_sizes=[24]")
    assert small != script
    exec(compile(small, "README.md", "exec"), {"__name__": "__main__"})


def run_command(command: str, patch: pytest.MonkeyPatch) -> None:
    parts = shlex.split(command)
    while "=" in parts[0]:
        patch.setenv(*parts.pop(0).split("=", 1))
    program, *arguments = parts
    if program == "make":
        check_make(*arguments)
    elif program == "pip":
        check_pip(*arguments)
    elif program == "whichlayers":
        call(*replaced(arguments, smaller(command)))
    elif program == "python" and arguments[0] == "examples/own_task.py":
        runpy.run_path(str(ROOT / arguments[0]))["main"]([*arguments[1:], *smaller(command)])
    else:
        pytest.fail(f"README.md has a command that is not tested: {command}")


def call(*arguments: str) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output + repr(result.exception)
    outputs = {"new": "my-study.toml", "report": "my-study/report.html", "export": "my-study/results.csv"}
    if arguments[0] in outputs:
        assert Path(outputs[arguments[0]]).is_file()
    if arguments[0] == "run":
        assert re.search(r"(\d+) of \1 trials of the study are done", result.output)


def check_make(target: str) -> None:
    """Check the commands that a make target would run, without running them."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {
        "demo": ["whichlayers run demo --folder whichlayers-demo", "whichlayers report whichlayers-demo"],
        "test": ["python -m pytest"],
    }[target]
    for part in wanted:
        assert part in done.stdout


def check_pip(verb: str, *what: str) -> None:
    """Check that pip keeps an installed torch of version 2.11 or newer."""
    assert verb == "install"
    assert list(what) == ["-e", "."]
    torch = [line for line in PROJECT["dependencies"] if re.match(r"torch\b", line)]
    assert torch == ["torch>=2.11"]


def test_extras_named_on_the_page_exist():
    named = re.findall(r"(?:whichlayers|\.)\[(\w+)\]", README)
    assert named
    for extras in named:
        assert extras in PROJECT["optional-dependencies"]


def check_columns_of_results_md() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    part = page.partition("The columns of `frame()`")[2].partition("\nStudies with word-level experiments")[0]
    rows = re.findall(r"^\| (`.*?) \|", part, re.MULTILINE)
    described = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    frame = whichlayers.load("mine").frame()
    assert set(frame.columns) - {"f1", "macro_f1"} == set(described)
    assert list(frame.columns[: described.index("accuracy")]) == described[: described.index("accuracy")]
    long = whichlayers.load("mine").epochs()
    expected = [c for c in described[: described.index("accuracy")] if c != "seconds"]
    assert list(long.columns) == [*expected, "epoch", "metric", "value"]


def check_snippets_of_results_md() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    variables: dict = {}
    for script in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(compile(script, "results.md", "exec"), variables)
    assert isinstance(variables["curve"], pd.DataFrame)
    assert variables["curve"].shape == (3, 3)  # trials, k = 0, 1, 2
    assert len(variables["frame"]) == 9


def test_the_entry_point_is_there():
    assert PROJECT["scripts"] == {"whichlayers": "whichlayers.cli:main"}
    assert whichlayers.version._source_version() == f"{PROJECT['version']}+source"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "whichlayers", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert re.fullmatch(r"whichlayers \S+\n", done.stdout), done.stderr


def test_the_example_says_which_layers_matter(tmp_path, monkeypatch):
    """On synthetic results in which only layers 1 to 3 have an effect, and layer 2 the largest."""
    from synthetic_results import incremental, single_layer, write_results

    def score(point):
        reinit = point.trial.surgery.reinit
        lost = {1: 0.1, 2: 0.2, 3: 0.1}
        return (
            0.9 - sum(lost.get(layer, 0.0) for layer in reinit) + 0.001 * (point.trial.seed % 3) * len(reinit)
        )

    points = [*incremental(trials=5), *single_layer(size=500, trials=5)]
    write_results(tmp_path, points, score)
    lines = runpy.run_path(str(ROOT / "examples" / "own_task.py"))["answer"](whichlayers.load(tmp_path))
    assert "accuracy: 0.900 with all 6 layers pretrained" in lines[0]
    assert "the first 3 of 6 layers reach 90% of it" in lines
    assert re.fullmatch(r"layer 2 re-initialized: -0\.\d+ \(significant\)", lines[3])
    assert lines[6] == "these layers matter for my task: 1, 2, 3"
    assert len(lines) == 7


# --- the file tree ---


def tree() -> list[str]:
    text = next(block for block in blocks("text") if block.startswith("src/whichlayers/"))
    paths, parent = [], ""
    for line in text.splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            parent = name if name.endswith("/") else ""
        paths.append(parent + name if line.startswith(" ") else name)
        assert len(line.split(maxsplit=1)) == 2 or name == "src/whichlayers/", f"{name} has no description"
    return paths


def test_every_path_of_the_tree_exists():
    for path in tree():
        assert (ROOT / path).exists(), path


def test_every_package_is_in_the_tree():
    package = ROOT / "src" / "whichlayers"
    packages = {f"src/whichlayers/{path.parent.name}/" for path in package.glob("*/__init__.py")}
    files = {f"src/whichlayers/{path.name}" for path in package.glob("*.py") if path.name != "__init__.py"}
    listed = {path for path in tree() if path != "src/whichlayers/" and path.startswith("src/whichlayers/")}
    assert listed == packages | files


def test_everything_at_the_top_is_in_the_tree():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    tops = {path.split("/")[0] + "/" * ("/" in path) for path in done.stdout.splitlines()}
    assert {top for top in tops if not top.startswith(".")} - {"src/", "README.md"} <= set(tree())


def test_the_table_is_that_of_the_demo_as_it_is_now():
    from whichlayers.study.preset import load_preset

    demo = load_preset("demo")
    table = next(block for block in blocks("text") if block.startswith("task"))
    rows = [line.split()[:2] for line in table.splitlines()[2:]]
    names = [task.name.removeprefix("builtin:") for task in demo.tasks]
    expected = sorted([name, str(size)] for name in names for size in demo.train_sizes)
    assert sorted(rows) == expected, "run `make demo`, then put its table and figure into the README"
    assert len(table.splitlines()[0].split()) == 2 + 7  # k = 0 to 6


def test_the_pictures_are_small():
    images = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert images[:2] == ["docs/images/demo.png", "docs/images/report.png"]
    tracked = subprocess.run(
        ["git", "ls-files", *images], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for image in images:
        assert (ROOT / image).stat().st_size < 300_000, image
        assert image in tracked.stdout.split(), f"{image} is not tracked by git"
