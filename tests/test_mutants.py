"""tests/mutants.py on a package of a few lines, with tests that check a part of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "mutants.py"
sys.path.insert(0, str(SCRIPT.parent))

from mutants import mutants_of, mutated, sample  # noqa: E402

SOURCE = '''
"""Docstring 1."""
LIMIT = 3


def checked(x: "int < 2") -> bool:
    """Docstring 2."""
    assert x > -5
    return x < LIMIT


def unchecked(x):
    return x * 2


def endless(x):
    while x > 0:
        x = x - 1
    return x
'''
TESTS = """
from small import code


def test_checked():
    assert code.checked(2)
    assert not code.checked(3)


def test_unchecked():
    assert code.unchecked(0) == 0
    assert code.endless(1) == 0
"""


def changes(source):
    return {(m.before, m.after) for m in mutants_of(source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a + b", {("a + b", "a - b")}),
        ("a < b", {("a < b", "a <= b"), ("a < b", "a > b")}),
        ("a is None", {("a is None", "a is not None")}),
        ("2 * p", {("2 * p", "2 / p"), ("2", "3")}),
        ("-a", {("-a", "a")}),
        ("not a", {("not a", "a")}),
        ("a and b", {("a and b", "a or b")}),
        ("max(a, b)", {("max(a, b)", "min(a, b)")}),
        ("f(flag=True)", {("True", "False")}),
        ("a if b else c", {("a if b else c", "c if b else a")}),
        ("0.4", {("0.4", repr(0.4 * 1.5))}),
        ("zip(a, b, strict=True)", set()),
        ("'text'", set()),
        ("assert a < b", set()),
        ("raise ValueError(1)", set()),
        ("x: Literal[1]", set()),
        ("@cache(1)\ndef f() -> Literal[1]: pass", set()),
    ],
)
def test_changes_of_an_expression(source, expected):
    assert changes(source) == expected


def test_each_mutant_differs_from_the_source_in_one_expression():
    source = "def f(a, b):\n    return a + b * (a + b)\n"
    texts = {mutated(source, m.position) for m in mutants_of(source)}
    assert texts == {
        "def f(a, b):\n    return a - b * (a + b)",
        "def f(a, b):\n    return a + b / (a + b)",
        "def f(a, b):\n    return a + b * (a - b)",
    }


def test_equal_lines_have_different_mutants():
    assert len({m.id for m in mutants_of("a < b\na < b\n")}) == 4


def test_the_seed_decides_the_sample(tmp_path):
    (tmp_path / "code.py").write_text(SOURCE)
    assert sample(tmp_path, 4, 0) == sample(tmp_path, 4, 0) != sample(tmp_path, 4, 1)
    assert len(set(sample(tmp_path, 10**6, 0))) == len(mutants_of(SOURCE))


def test_mutants_of_checked_lines_are_killed_and_results_are_kept(tmp_path):
    package, tests = tmp_path / "small", tmp_path / "tests"
    package.mkdir()
    tests.mkdir()
    (package / "__init__.py").touch()
    (package / "code.py").write_text(SOURCE)
    (tests / "test_code.py").write_text(TESTS)

    def run(*more):
        command = [sys.executable, str(SCRIPT), "small", "tests", "--out", "found.jsonl", *more]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    def results():
        rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
        return {(row["before"], row["after"]): row for row in rows}

    first = run("--n", "100", "--timeout", "3")
    assert first.returncode == 1, first.stderr
    found = results()
    for change in (("3", "4"), ("x < LIMIT", "x <= LIMIT"), ("x < LIMIT", "x > LIMIT")):
        assert (found[change]["status"], found[change]["test"]) == (
            "killed",
            "tests/test_code.py::test_checked",
        )
    assert found["2", "3"]["status"] == found["x * 2", "x / 2"]["status"] == "survived"
    assert found["x - 1", "x + 1"]["status"] == "timed out"
    assert "not explained" in first.stdout
    assert (package / "code.py").read_text() == SOURCE

    second = run("--n", "100")  # nothing is left to run
    assert "without a mutant" not in second.stdout
    assert second.stdout.strip().startswith(
        f"{len(found) - second.stdout.count('survived:')} of {len(found)}"
    )

    survivors = [row for row in found.values() if row["status"] == "survived"]
    listed = "".join(
        f'[[survivor]]\nfile = "code.py"\nline = "{row["line_text"]}"\nafter = "{row["after"]}"\nwhy = "x is 0"\n'
        for row in survivors
    )
    (tests / "survivors.toml").write_text(listed)
    third = run("--n", "100")
    assert third.returncode == 0
    assert third.stdout.count("x is 0") == len(survivors)

    with (tests / "test_code.py").open("a") as file:
        file.write("    assert code.unchecked(3) == 6\n")
    run("--n", "100", "--again", "--timeout", "3")
    assert results()["2", "3"]["status"] == "killed"


def test_tests_that_fail_without_a_mutant_are_an_error(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "__init__.py").write_text("x = 1\n")
    (tmp_path / "test_x.py").write_text("def test_x():\n    assert False\n")
    command = [sys.executable, str(SCRIPT), "small", "test_x.py", "--n", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "fail without a mutant" in done.stderr
