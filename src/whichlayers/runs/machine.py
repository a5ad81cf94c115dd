"""The machine and what runs on it: cores, memory, devices, versions. What cannot be found is left out."""

from __future__ import annotations

import os
import platform
import shlex
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from whichlayers import __version__
from whichlayers.errors import WhichlayersError
from whichlayers.results.records import RunRow

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")
CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores this process may use: its affinity, and a container's quota where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup here, or "max": no quota
        pass
    return max(1, cores)


def choose_devices(asked: str | None) -> list[str]:
    """`cpu`, `cuda`, `cuda:1`, `cuda:0,cuda:1`; None takes every GPU that torch sees, else the CPU."""
    if asked == "cpu":
        return ["cpu"]
    import torch

    if asked is None:
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [f"cuda:{n}" for n in range(there)] if there > 1 else ["cuda" if there else "cpu"]
    from whichlayers.engine.finetune import checked_device  # the engine knows what it can train on

    devices = [name.strip() for name in asked.split(",")]
    for name in devices:
        try:
            checked_device(name)
        except WhichlayersError as error:
            raise WhichlayersError(f"--{error}") from None  # --device NAME: ...
    return devices


def device_name(device: str) -> str:
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
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | {"whichlayers": __version__}


def git_commit() -> str | None:
    """The commit of the package's source tree, else of the working directory; '+' marks changes."""
    for place in (Path(__file__).parent, Path.cwd()):
        if "site-packages" in place.parts:
            continue
        if commit := _output(["git", "-C", str(place), "rev-parse", "HEAD"]):
            changed = _output(["git", "-C", str(place), "status", "--porcelain", "--untracked-files=no"])
            return commit + ("+" if changed else "")
    return None


def this_run(devices: list[str], threads: int, named: bool = False) -> RunRow:
    """`named`: the devices are in words already, since they are not of this machine."""
    return RunRow(
        host=socket.gethostname(),
        pid=os.getpid(),
        device=", ".join(devices if named else map(device_name, devices)),
        threads=threads,
        versions=versions(),
        git_commit=git_commit(),
        command=this_command(),
    )


def this_command() -> str:
    """What was typed, without where this machine keeps the program."""
    program, arguments = Path(sys.argv[0]), sys.argv[1:]
    if program.name == "__main__.py":
        words = ["python", "-m", program.parent.name]
    elif program.suffix == ".py":
        words = ["python", program.name]
    else:
        words = [program.name or "python"]
    return shlex.join([*words, *arguments])


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
