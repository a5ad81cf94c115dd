"""Test setup: one torch thread per process, no network access, cheap garbage collection, path of the shared data."""

import gc
import os
import signal
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of runs too: small models are slower with more threads

import pytest
import torch

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
HERE = Path(__file__).parent
SHARED = HERE.parent.parent / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests of this folder, some of which take a minute, before those of its subfolders.

    They would otherwise be the last ones, and one worker of pytest-xdist would wait for the other.
    """
    items.sort(key=lambda item: item.path.parent != HERE)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Reset the number of torch threads, which a run in an earlier test may have increased; more threads are slower."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """Exclude what exists before a module's tests (libraries, thousands of test items) from garbage collection.

    The engine runs the garbage collector after every stack, and statsmodels' multipletests at each call, which would
    take most of a second in a process with all tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real data and models next to the checkout; tests that use it are skipped if it does not exist."""
    if not (SHARED / "data").is_dir():
        pytest.skip("no real data (../shared/data)")
    return SHARED
