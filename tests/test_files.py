"""Atomic writing: the old file or the complete new one, and no temporary file left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from whichlayers.files import atomic_write, scratch_folder


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "report.html"
    file.write_text("old")
    return file


def test_the_new_file_replaces_the_old_one_when_the_block_ends(file):
    with atomic_write(file) as partial:
        partial.write_text("new")
        assert file.read_text() == "old"
        assert partial.parent == file.parent
        assert partial.name.startswith("report.html.")
        assert partial.name.endswith(".partial")
    assert file.read_text() == "new"
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_does_not_exist_yet_is_created_with_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()
    with atomic_write(tmp_path / "new") as partial:
        partial.write_bytes(b"\0\1")
    assert (tmp_path / "new").read_bytes() == b"\0\1"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_the_block_leaves_the_old_file_and_nothing_else(file, error):
    def write():
        with atomic_write(file) as partial:
            partial.write_text("ne")
            raise error

    with pytest.raises(error):
        write()
    assert file.read_text() == "old"
    assert list(file.parent.iterdir()) == [file]


def test_a_killed_process_leaves_the_old_file(file):
    code = (
        "import os, sys, pathlib, whichlayers.files as files\n"
        "with files.atomic_write(pathlib.Path(sys.argv[1])) as partial:\n"
        "    partial.write_text('ne')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)])
    assert done.returncode == -signal.SIGKILL
    assert file.read_text() == "old"
    (left,) = set(file.parent.iterdir()) - {file}
    assert left.name.endswith(".partial")
    with atomic_write(file) as partial:  # does not collide with what is left
        partial.write_text("new")
    assert file.read_text() == "new"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_an_error_that_names_the_file(file):
    def write():
        with atomic_write(file) as partial:
            partial.symlink_to("/dev/full")
            partial.write_text("new")

    with pytest.raises(OSError, match="No space left on device") as caught:
        write()
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(file)
    assert file.read_text() == "old"
    assert list(file.parent.iterdir()) == [file]


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path):
    absent = tmp_path / "absent" / "report.html"
    with pytest.raises(FileNotFoundError) as caught, atomic_write(absent) as partial:
        partial.write_text("new")
    assert caught.value.filename == str(absent)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError) as caught, atomic_write(folder) as partial:
        partial.write_text("new")
    assert caught.value.filename == str(folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(pipe) as target:
        target.write_text("through")
    assert os.read(reader, 99) == b"through"
    os.close(reader)
    assert pipe.is_fifo()
    with pytest.raises(OSError, match="No space left") as caught, atomic_write(Path("/dev/full")) as target:
        target.write_text("x")
    assert caught.value.filename == "/dev/full"


def test_other_errors_of_the_block_are_not_changed(file):
    with pytest.raises(FileNotFoundError) as caught, atomic_write(file):
        open(file.parent / "other")  # noqa: SIM115
    assert caught.value.filename == str(file.parent / "other")
    with pytest.raises(OSError, match=r"^killed here$"), atomic_write(file):
        raise OSError("killed here")


@pytest.mark.parametrize("fsync", [False, True])
def test_fsync_flushes_the_file_before_it_is_moved(file, monkeypatch, fsync):
    calls = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(f"fsync {os.fstat(descriptor).st_size}"))
    monkeypatch.setattr(os, "replace", lambda a, b: calls.append("replace") or replace(a, b))
    with atomic_write(file, fsync=fsync) as partial:
        partial.write_text("12345")
    assert calls == ["fsync 5"] * fsync + ["replace"]


def test_a_scratch_folder_is_deleted_and_so_are_those_of_killed_processes(tmp_path):
    code = (
        "import os, sys, pathlib, whichlayers.files as files\n"
        "with files.scratch_folder('mine-', pathlib.Path(sys.argv[1])) as folder:\n"
        "    (folder / 'big').write_text('x')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment)
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "mine-from-another-program").mkdir()  # without a lock file: not ours
    with scratch_folder("mine-", tmp_path) as one:
        with scratch_folder("mine-", tmp_path) as other:  # one is in use
            names = {path.name for path in tmp_path.iterdir()}
            assert names == {one.name, other.name, "mine-from-another-program"}
        assert one.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["mine-from-another-program"]
