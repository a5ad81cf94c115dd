"""Mutation testing: do the tests of a package notice small errors in it?

    python tests/mutants.py src/whichlayers/analysis tests/analysis --n 100 --seed 0

A mutant is a copy of the source with one change: a sign, an operator, a comparison, a constant, min for max, any for
all. It is killed if a test fails (or hangs), and survives if all tests pass. Mutants are drawn at random, with a fixed
seed. Each is run against the tests that execute its line, the quickest first; one that survives these is run against
the other tests of their files, whose fixtures may have executed it. Lines that are executed on import are run against
all tests.

The package is imported from a copy of its source tree, never from the tree itself. Tests run in forked processes that
share the imports of third-party packages. Results are appended to a JSON Lines file as they are found: an interrupted
run continues where it stopped, and `--again` runs the mutants that survived once more, e.g. after adding tests.

Mutants that survive for a good reason are listed in survivors.toml in the folder of the tests:

    [[survivor]]
    file = "power.py"
    line = "NODES = 400"
    after = "401"
    why = "one more node of the quadrature changes nothing at the precision used"

where `line` is the source line, without indentation, and `after` the text that the mutant has in its place.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import dataclasses
import hashlib
import importlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

BINARY: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.MatMult: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
TIMEOUT_FACTOR = 10.0  # the machine may be busier than it was when tests were timed


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of one expression."""

    file: str  # relative to the package
    line: int
    column: int
    line_text: str  # of the source, without indentation
    before: str
    after: str
    position: tuple[int, int]  # number of the expression in the file, and of its change
    occurrence: int = 0  # among mutants of the file that are equal otherwise

    @property
    def id(self) -> str:
        """Depends on the text of the line and not on its number, so that results stay valid as files change."""
        text = f"{self.file}:{self.column}:{self.line_text}:{self.before}:{self.after}:{self.occurrence}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  ->  {self.after}"


def mutants_of(source: str, file: str = "") -> list[Mutant]:
    """All mutants of a Python source file."""
    lines, found, seen = source.splitlines(), [], collections.Counter()
    for i, node in enumerate(_mutable(ast.parse(source))):
        for j, changed in enumerate(_changes(node)):
            place = (file, node.lineno, node.col_offset, lines[node.lineno - 1].strip())
            texts = (ast.unparse(node), ast.unparse(changed))
            key = (place[2:], texts)
            found.append(Mutant(*place, *texts, (i, j), seen[key]))
            seen[key] += 1
    return found


def mutated(source: str, position: tuple[int, int]) -> str:
    """The source with one expression changed; `position` is that of the mutant."""
    tree = ast.parse(source)
    old = list(_mutable(tree))[position[0]]
    new = list(_changes(old))[position[1]]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Replace().visit(tree)))


def _mutable(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that a mutant may change: no annotations, decorators, docstrings, assertions or error messages."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Assert | ast.Raise):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":  # of zip: an assertion, too
                continue
            if isinstance(child, ast.expr):
                yield child
            yield from _mutable(child)


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    """What a mutant may have in place of `node`."""
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(value * 1.5 if value else 1.0)
        case ast.BinOp(left, op, right) if type(op) in BINARY:
            yield ast.BinOp(left, BINARY[type(op)](), right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            yield operand
        case ast.Compare(left, ops, comparators):
            for i, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield ast.Compare(left, [*ops[:i], other(), *ops[i + 1 :]], comparators)
        case ast.Call(ast.Name(name), arguments, keywords) if name in FUNCTIONS:
            yield ast.Call(ast.Name(FUNCTIONS[name]), arguments, keywords)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)


class Runner:
    """Runs the tests of a folder against a copy of the source tree that a package is in."""

    def __init__(
        self, package: Path, tests: Sequence[Path], scratch: Path, timeout: float, slowest: float
    ) -> None:
        self.timeout, self.slowest = timeout, slowest
        self.package, self.tests, self.scratch = package, [str(path) for path in tests], scratch
        root = package
        while (root.parent / "__init__.py").exists():
            root = root.parent
        self.top = root.name
        self.copy = scratch / "src" / package.relative_to(root.parent)
        shutil.copytree(root, scratch / "src" / root.name, ignore=shutil.ignore_patterns("__pycache__"))

    def baseline(self, timeout: float = 3600) -> None:
        """Run all tests without a mutant: their durations, and the tests that run each line."""
        status = self._fork(self.tests, timeout, measure=True)
        if status != 0:
            log = (self.scratch / "log").read_text()
            raise SystemExit(f"the tests fail without a mutant:\n{log[-3000:]}")
        facts = json.loads((self.scratch / "baseline.json").read_text())
        self.seconds: dict[str, float] = {
            test: seconds for test, seconds in facts["seconds"].items() if seconds <= self.slowest
        }
        self.lines: dict[str, dict[str, list[str]]] = facts["lines"]
        for name in facts["modules"]:  # forked tests do not import them again
            with contextlib.suppress(Exception):
                importlib.import_module(name)

    def run(self, mutant: Mutant) -> tuple[str, str]:
        """Status of a mutant, and the test that killed it."""
        path = self.copy / mutant.file
        original = path.read_text()
        path.write_text(mutated(original, mutant.position))
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            cached.unlink()
        try:
            near = self.lines.get(str(path), {}).get(str(mutant.line), [])
            near = sorted(set(near) & set(self.seconds), key=self.seconds.__getitem__)
            files = {test.partition("::")[0] for test in near}
            rest = {test for test in self.seconds if not near or test.partition("::")[0] in files}
            rest = sorted(rest - set(near), key=self.seconds.__getitem__)
            for tests in (near, rest):
                if not tests:
                    continue
                needed = sum(self.seconds[test] for test in tests)
                status = self._fork(tests, self.timeout + TIMEOUT_FACTOR * needed)
                if status is None:
                    return TIMED_OUT, ""
                if status != 0:
                    failed = self.scratch / "failed"
                    return KILLED, failed.read_text() if failed.exists() else ""
            return SURVIVED, ""
        finally:
            path.write_text(original)

    def _fork(self, tests: Sequence[str], timeout: float, measure: bool = False) -> int | None:
        """Exit status of pytest on `tests` in a forked process; None if it took longer than `timeout` seconds."""
        (self.scratch / "failed").unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            os.setsid()
            with open(self.scratch / "log", "w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            status = 70
            try:
                status = self._pytest(tests, measure)
            finally:
                sys.stdout.flush()
                os._exit(status)
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def _pytest(self, tests: Sequence[str], measure: bool) -> int:
        """Run pytest in this process, with the copy of the source."""
        import pytest

        source = str(self.scratch / "src")
        sys.path.insert(0, source)
        os.environ["PYTHONPATH"] = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
        os.environ["HF_HUB_OFFLINE"] = "1"
        sys.dont_write_bytecode = not measure
        plugin = Measure() if measure else StopAtFailure(self.scratch / "failed")
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", "--no-header"]
        if not measure:
            return int(pytest.main([*options, "-x", "-p", "no:cov", *tests], plugins=[plugin]))
        import coverage

        cov = coverage.Coverage(
            data_file=str(self.scratch / "coverage"), config_file=False, source=[str(self.copy)]
        )
        plugin.coverage = cov
        cov.start()
        status = int(pytest.main([*options, "-p", "no:cov", *tests], plugins=[plugin]))
        cov.stop()
        data = cov.get_data()
        lines = {
            path: {str(n): _tests(names) for n, names in data.contexts_by_lineno(path).items()}
            for path in data.measured_files()
        }
        modules = [name for name in sys.modules if self._is_third_party(name)]
        facts = {"seconds": plugin.seconds, "lines": lines, "modules": modules}
        (self.scratch / "baseline.json").write_text(json.dumps(facts))
        return status

    def _is_third_party(self, name: str) -> bool:
        """Whether a module is neither of the package nor of the tests."""
        file = getattr(sys.modules[name], "__file__", None) or ""
        return (
            name.partition(".")[0] != self.top and "site-packages" in file and not name.startswith("coverage")
        )


def _tests(contexts: Sequence[str]) -> list[str]:
    return sorted({name for name in contexts if name})


class Measure:
    """A pytest plugin: durations of the tests, and the test as the context of coverage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.coverage = None

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        self.coverage.switch_context(nodeid)
        self.seconds[nodeid] = -time.process_time()  # other processes may keep the machine busy

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        self.coverage.switch_context("")
        self.seconds[nodeid] += time.process_time()


class StopAtFailure:
    """A pytest plugin that writes down which test failed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.path.write_text(report.nodeid)

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.path.write_text(f"import of {report.nodeid}")


def sample(package: Path, n: int, seed: int) -> list[Mutant]:
    """`n` mutants of the package at random, without repetition; all of them if there are fewer.

    Those with the smallest hashes: a change of the package changes only a few mutants of the sample.
    """
    found = []
    for path in sorted(package.rglob("*.py")):
        found += mutants_of(path.read_text(), path.relative_to(package).as_posix())
    return sorted(found, key=lambda mutant: hashlib.sha256(f"{seed}:{mutant.id}".encode()).digest())[:n]


def explanations(tests: Sequence[Path]) -> dict[tuple[str, str, str], str]:
    """(file, line, after) -> why this mutant may survive, from survivors.toml in the folders of the tests."""
    found = {}
    for path in tests:
        listed = path / "survivors.toml"
        if listed.exists():
            for row in tomllib.loads(listed.read_text()).get("survivor", []):
                found[row["file"], row["line"], row["after"]] = row["why"]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run mutants and print a summary; the status is 1 if a mutant survives that is not explained."""
    parser = argparse.ArgumentParser(description="Mutation testing of one package by its own tests.")
    parser.add_argument("package", type=Path, help="folder of the package, e.g. src/whichlayers/analysis")
    parser.add_argument(
        "tests", type=Path, nargs="+", help="folders or files of its tests, e.g. tests/analysis"
    )
    parser.add_argument("--n", type=int, default=100, help="number of mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="results (default: .mutants/PACKAGE.jsonl)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=30,
        help="seconds beyond ten times what the tests take (default: %(default)s)",
    )
    parser.add_argument(
        "--slowest",
        type=float,
        default=math.inf,
        help="leave out tests that take more seconds of CPU time; mutants that only they kill count as survived",
    )
    parser.add_argument("--again", action="store_true", help="run mutants that survived once more")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    options = parser.parse_args(arguments)
    chosen = sample(options.package, options.n, options.seed)
    if options.list:
        print(*(f"{mutant.id} {mutant}" for mutant in chosen), sep="\n")
        return 0
    out = options.out or Path(".mutants") / f"{options.package.name}.jsonl"
    known = _read_results(out)
    open_statuses = {None, SURVIVED} if options.again else {None}
    left = [mutant for mutant in chosen if known.get(mutant.id, {}).get("status") in open_statuses]
    _run_all(left, options.package, options.tests, out, options.timeout, options.slowest)
    return _summarize(chosen, _read_results(out), explanations(options.tests))


def _run_all(
    chosen: Sequence[Mutant], package: Path, tests: Sequence[Path], out: Path, timeout: float, slowest: float
) -> None:
    if not chosen:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, out.open("a") as results:
        runner = Runner(package.resolve(), tests, Path(scratch).resolve(), timeout, slowest)
        print(f"running the tests of {package} without a mutant", flush=True)
        runner.baseline()
        for i, mutant in enumerate(chosen, 1):
            start = time.monotonic()
            status, test = runner.run(mutant)
            fields = {
                name: getattr(mutant, name) for name in ("id", "file", "line", "line_text", "before", "after")
            }
            row = fields | {"status": status, "test": test, "seconds": round(time.monotonic() - start, 1)}
            results.write(json.dumps(row) + "\n")
            results.flush()
            print(f"{i}/{len(chosen)} {status}: {mutant}" + (f"  ({test})" if test else ""), flush=True)


def _read_results(path: Path) -> dict[str, dict]:
    """Mutant id -> its newest result."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row["id"]: row for row in rows}


def _summarize(
    chosen: Sequence[Mutant], results: dict[str, dict], known: dict[tuple[str, str, str], str]
) -> int:
    alive = [mutant for mutant in chosen if results[mutant.id]["status"] == SURVIVED]
    killed = len(chosen) - len(alive)
    print(f"\n{killed} of {len(chosen)} mutants killed ({killed / max(1, len(chosen)):.0%})")
    unexplained = 0
    for mutant in sorted(alive, key=lambda m: (m.file, m.line)):
        why = known.get((mutant.file, mutant.line_text, mutant.after))
        unexplained += why is None
        print(f"survived: {mutant}\n    in: {mutant.line_text}\n    {why or 'not explained'}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
