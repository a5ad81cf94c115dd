"""Silence transformers while models and tokenizers are loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transformers.utils import logging as transformers_logging


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bar and its warning about heads that are not loaded."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
