"""A folder as a reader of the documentation has it, and the commands of a page run in it, made small."""

from __future__ import annotations

import contextlib
import csv
import itertools
import re
import runpy
import shlex
import sqlite3
import subprocess
import tomllib
from functools import partial
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from whichlayers.cli import app
from whichlayers.runs import estimate, machine, run_study
from whichlayers.study.study_file import load_study

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORDS = ["the", "a", "film", "plot", "was", "is", "very", "not"]
KIND, UNKIND = ["good", "great", "fine"], ["bad", "dull", "poor"]
# options that make a command of a page small enough for a test; the last of two equal options counts
SMALLER = {
    "plan tamkin2020": ["--model", "./my-model", "--sizes", "16", "--trials", "1"],
    "run tamkin2020": ["--model", "./my-model", "--sizes", "16", "--trials", "1", "--tasks", "SST-2"],
    "run my-study.toml": ["--sizes", "32"],
    "plan my-study.toml": ["--sizes", "32"],
    "run first.toml": ["--model", "./my-model", "--sizes", "16"],
    "plan first.toml": ["--model", "./my-model", "--sizes", "16"],
    "own_task.py": ["--size", "16", "--trials", "2", "--epochs", "1"],
}


def smaller(command: str) -> list[str]:
    return next((more for part, more in SMALLER.items() if part in command), [])


def replaced(arguments: list[str], options: list[str]) -> list[str]:
    """The arguments with these options, which replace options of the same name."""
    names = set(options[::2])
    pairs = zip(arguments, [None, *arguments], strict=False)
    return [argument for argument, previous in pairs if names.isdisjoint((argument, previous))] + options


def make_reader_folder(folder: Path) -> Path:
    """A folder as a reader of the page has it: examples/, results/, my-model, CSV files and glue_data."""
    save_model(folder / "my-model")
    for split, rows in (("train", 240), ("dev", 24)):
        write(folder / f"{split}.csv", ",", [("text", "label"), *examples(rows)])
    write(folder / "new.csv", ",", [("text",), *((text,) for text, _ in examples(4))])
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "results").symlink_to(ROOT / "results")
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


def enter_reader_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the reader's folder; train in this process, on the CPU."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("WHICHLAYERS_CACHE", raising=False)
    real = run_study.run
    here = {"workers": 0, "device": "cpu"}
    monkeypatch.setattr(run_study, "run", lambda *a, **o: real(*a, **(o | here)))
    monkeypatch.setattr(estimate, "time_stacks", partial(estimate.time_stacks, seconds=2))
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)  # more threads would slow down parallel tests


def run_command(command: str, patch: pytest.MonkeyPatch) -> None:
    parts = shlex.split(command)
    while "=" in parts[0]:
        patch.setenv(*parts.pop(0).split("=", 1))
    program, *arguments = parts
    if program == "make":
        check_make(*arguments)
    elif program == "pip":
        check_pip(*arguments)
    elif program == "sqlite3":
        with contextlib.closing(sqlite3.connect(f"file:{arguments[0]}?mode=ro", uri=True)) as db:
            assert db.execute(arguments[1]).fetchall()
    elif program == "whichlayers" and re.search(r"run results/|--gpus|cuda:", command):
        check_arguments(*arguments)
    elif program == "whichlayers":
        call(*replaced(arguments, smaller(command)))
    elif program == "python" and arguments[0] == "examples/own_task.py":
        runpy.run_path(str(ROOT / arguments[0]))["main"]([*arguments[1:], *smaller(command)])
    else:
        pytest.fail(f"a page has a command that is not tested: {command}")


def call(*arguments: str) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output + repr(result.exception)
    outputs = {"new": "{}", "report": "{}/report.html", "export": "{}/results.csv"}
    if arguments[0] in outputs and "tensorboard" not in arguments:
        assert Path(outputs[arguments[0]].format(arguments[1])).is_file()
    if arguments[0] == "run":
        assert re.search(r"(\d+) of \1 trials of the study are done", result.output)


def check_arguments(command: str, study: str, *options: str) -> None:
    """Check study file and options of a command that needs a GPU, or a model and data too large for a test."""
    assert load_study(Path(study)).models
    get_command(app).commands[command].make_context(command, [study, *options])


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
    option, target = what
    assert option == "-e"
    assert target in (".", *(f".[{extra}]" for extra in PROJECT["optional-dependencies"]))
    torch = [line for line in PROJECT["dependencies"] if re.match(r"torch\b", line)]
    assert torch == ["torch>=2.11"]
