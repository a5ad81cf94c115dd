"""benchmarks/gpu_session.sh runs a study in the background and copies its results while it runs."""

import contextlib
import ctypes
import lzma
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_session.sh"
# in place of whichlayers: a run that adds a row, and ends as soon as there is a file `end` in the study folder
STAND_IN = """
import pathlib, sqlite3, sys, time
command, study, option, folder, *further = sys.argv[1:]
assert (command, option, further) == ("run", "--folder", ["--max-stack", "32"]) and pathlib.Path(study).is_file()
pathlib.Path(folder).mkdir(exist_ok=True)
db = sqlite3.connect(pathlib.Path(folder) / "results.db", isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("CREATE TABLE IF NOT EXISTS trials(id)")
db.execute("INSERT INTO trials VALUES (1)")
print("one trial", flush=True)
while not (pathlib.Path(folder) / "end").exists():
    time.sleep(0.05)
"""
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("setsid"), reason="needs setsid")


@pytest.fixture
def no_init():
    """Nobody waits for orphaned processes: they become children of this one, which does not."""
    libc = ctypes.CDLL(None)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def repository(tmp_path) -> Path:
    files = {"benchmarks/gpu_session.sh": SCRIPT.read_text(), "src/whichlayers/__main__.py": STAND_IN}
    files |= {"src/whichlayers/__init__.py": "", "studies/gpu/study.toml": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def session(repository: Path, part: str, wait: int = 20) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHON": sys.executable, "WAIT": str(wait), "RUN_OPTIONS": "--max-stack 32"}
    environment["START_WAIT"] = "1"
    environment.pop("STUDY", None)
    command = ["bash", str(repository / "benchmarks" / "gpu_session.sh"), part, str(repository / "out")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def fetched_rows(repository: Path) -> int:
    copy = repository / "fetched.db"
    copy.write_bytes(lzma.decompress((repository / "out" / "results.db.xz").read_bytes()))
    with sqlite3.connect(copy) as db:
        return db.execute("SELECT COUNT(*) FROM trials").fetchone()[0]


def wait_for(condition, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_study_runs_beside_the_session_and_is_resumed(repository, no_init):
    study = repository / "studies" / "gpu"
    began = time.monotonic()
    assert session(repository, "study").returncode == 0
    pid = int((study / "pid").read_text())
    wait_for(lambda: (study / "log").read_text() == "one trial\n")
    again = session(repository, "study")
    assert (again.returncode, again.stderr) == (2, "studies/gpu is running already\n")
    assert os.getsid(pid) == pid, "it does not end with the session"
    assert session(repository, "fetch", wait=1).returncode == 0
    assert fetched_rows(repository) == 1
    assert time.monotonic() - began < 15

    (study / "out" / "end").touch()
    wait_for(lambda: "State:\tZ" in Path(f"/proc/{pid}/status").read_text())
    began = time.monotonic()
    assert "one trial" in session(repository, "fetch").stdout
    assert time.monotonic() - began < 15, "it does not wait for a run that has ended"
    assert session(repository, "study").returncode == 0, "it is resumed"
    for ended in (pid, int((study / "pid").read_text())):
        with contextlib.suppress(ChildProcessError):  # the script waits for a run that ends at once
            os.waitpid(ended, 0)
    assert session(repository, "fetch").returncode == 0
    assert fetched_rows(repository) == 2


def test_without_a_study_there_is_nothing_to_fetch(repository):
    done = session(repository, "fetch")
    assert "copy: exit status 1" in done.stdout


def test_why_a_study_cannot_start_is_shown_at_once(repository):
    (repository / "src" / "whichlayers" / "__main__.py").write_text("import missing_module")
    done = session(repository, "study")
    assert done.returncode == 1
    assert "No module named 'missing_module'" in done.stdout
    assert "No module named 'missing_module'" in (repository / "out" / "study.log").read_text()


# --- benchmarks, with stand-ins for Python and for the clock ---

PYTHON = """#!/usr/bin/env bash
case "$*" in
    *find_spec*) exit ${MISSING:-0} ;;
    *lora_vs_peft*135M*) echo "135M fails" >&2; exit 7 ;;
    *lora_vs_peft*) echo "1B succeeds"; for out; do :; done; echo '{}' > "$out" ;;
    *study_time*) echo "study_time begins"; setsid sleep 30 & exec sleep 30 ;;
esac
"""
# time limits of 580 and 300 seconds become a second
TIMEOUT = """#!/usr/bin/env bash
shift 2
exec /usr/bin/env -u BASH_ENV "$TIMEOUT_PROGRAM" --kill-after=1 1 "$@"
"""


def benchmark(repository: Path, part: str, **environment: str) -> subprocess.CompletedProcess:
    programs = repository / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in {"python": PYTHON, "timeout": TIMEOUT}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    found = shutil.which("timeout")
    assert found is not None
    variables = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": str(programs / "python"),
        "TIMEOUT_PROGRAM": found,
        **environment,
    }
    command = ["bash", str(repository / "benchmarks" / "gpu_session.sh"), part, str(repository / "out")]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)


def test_a_step_that_fails_does_not_stop_the_next(repository):
    done = benchmark(repository, "adapters")
    assert "lora_135M: exit status 7, 0 s" in done.stdout
    assert "lora_1B: exit status 0, " in done.stdout
    log = (repository / "out" / "adapters.log").read_text()
    assert all(text in log for text in ("135M fails", "1B succeeds", "lora_1B: exit status 0"))
    assert (repository / "out" / "lora_1B.json").read_text() == "{}\n"


def test_a_step_that_takes_too_long_is_ended_with_its_log(repository):
    began = time.monotonic()
    done = benchmark(repository, "start")
    assert time.monotonic() - began < 15, "it does not wait for what the step leaves behind"
    assert "study_time: exit status 124, " in done.stdout
    assert "study_time begins" in (repository / "out" / "start.log").read_text()


@pytest.mark.parametrize("part", ["tests", "start", "rivals", "adapters", "study"])
def test_a_part_whose_packages_are_missing_stops_at_once(part, repository):
    assert benchmark(repository, part, MISSING="1").returncode == 3


def test_every_part_ends_within_ten_minutes():
    lines = SCRIPT.read_text().splitlines()
    limits = [int(line.split()[2]) for line in lines if line.strip().startswith("step ")]
    assert limits
    assert max(limits) < 590
    assert "seconds=$((575 - SECONDS))" in SCRIPT.read_text()


def test_samples_of_nvidia_smi(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from study_time import read_sample

    first, second = (read_sample(f"2026/11/18 12:00:0{n}.250, 97\n") for n in (1, 2))
    assert second[0] - first[0] == pytest.approx(1)
    assert first[1] == 0.97
    for line in ("2026/11/18 12:00:01.250, [N/A]\n", "2026/11/18 12:00:01.2", "2026/11", "\n"):
        assert read_sample(line) is None
