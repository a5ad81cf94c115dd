"""The machine and the software of a run: cores, devices, package versions, git commit, command line."""

from __future__ import annotations

import os
import platform
import shlex
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from whichlayers.errors import WhichlayersError
from whichlayers.results.records import RunRow
from whichlayers.version import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")
CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Number of CPU cores that this process may use: its affinity, limited by the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup, or "max": no quota
        pass
    return max(1, cores)


def thread_limit() -> int | None:
    """Number of threads that the user allows a process, by the variable OMP_NUM_THREADS; None if it is not set."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # "4,2" is for nested levels
    return int(text) if text.isdecimal() and int(text) > 0 else None


def choose_devices(requested: str | None) -> list[str]:
    """The devices to train on.

    Args:
        requested: "cpu", "cuda", "cuda:1", "cuda:0,cuda:1"; None: all GPUs that torch sees, else the CPU.

    Raises:
        WhichlayersError: A device does not exist or is not supported.
    """
    if requested == "cpu":
        return ["cpu"]
    import torch

    if requested is None:
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [f"cuda:{n}" for n in range(gpus)] if gpus > 1 else ["cuda" if gpus else "cpu"]
    from whichlayers.engine.devices import resolve_device

    devices = [name.strip() for name in requested.split(",")]
    for name in devices:
        try:
            resolve_device(name)
        except WhichlayersError as error:
            raise WhichlayersError(f"--{error}") from None  # --device NAME: ...
    return devices


def device_name(device: str) -> str:
    """The device with its hardware name, such as "cuda:0 (NVIDIA A100)"."""
    if device.startswith("cuda"):
        index = device.partition(":")[2] or "0"
        name = _output(["nvidia-smi", "-i", index, "--query-gpu=name", "--format=csv,noheader"])
        return f"{device} ({name})" if name else device
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{device} ({name})"


def versions() -> dict[str, str]:
    """Versions of Python, whichlayers and the packages that affect results."""
    result = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            result[package] = version(package)
        except PackageNotFoundError:
            continue
    return result | {"whichlayers": __version__}


def git_commit() -> str | None:
    """The commit of the package's source tree, else of the working directory; "+" marks uncommitted changes."""
    for folder in (Path(__file__).parent, Path.cwd()):
        if "site-packages" in folder.parts:
            continue
        if commit := _output(["git", "-C", str(folder), "rev-parse", "HEAD"]):
            changed = _output(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
            return commit + ("+" if changed else "")
    return None


def describe_run(devices: list[str], threads: int, named: bool = False) -> RunRow:
    """The row of the table `runs` for a run of this process.

    Args:
        devices: Devices of this machine, or with `named` the hardware names of devices on other machines.
        threads: Number of CPU threads of each process.
    """
    return RunRow(
        host=socket.gethostname(),
        pid=os.getpid(),
        device=", ".join(devices if named else map(device_name, devices)),
        threads=threads,
        versions=versions(),
        git_commit=git_commit(),
        command=command_line(),
    )


def command_line() -> str:
    """The command line of this process, without the folder of the program."""
    program, arguments = Path(sys.argv[0]), sys.argv[1:]
    if program.name == "__main__.py":
        command = ["python", "-m", program.parent.name]
    elif program.suffix == ".py":
        command = ["python", program.name]
    else:
        command = [program.name or "python"]
    return shlex.join([*command, *arguments])


def _output(command: list[str]) -> str | None:
    """The standard output of a command; None if it fails or is not installed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
