"""Test set-up: one torch thread a worker, no network, where the shared data lies."""

import os
import signal
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start deaf to Ctrl-C
HERE = Path(__file__).parent
SHARED = HERE.parent.parent / "shared"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """A run inside an earlier test may have taken more, and two workers' threads get in each other's way."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and models beside the checkout; tests that need it are skipped where it is not."""
    if not (SHARED / "data").is_dir():
        pytest.skip("real data (../shared/data) is not there")
    return SHARED
