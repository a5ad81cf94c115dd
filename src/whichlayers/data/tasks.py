"""The `Task` dataclass: texts, labels and metrics of a task, with a fingerprint.

All loaders (GLUE, custom files, built-in tasks) return a `Task`, so later stages do not depend on its source.
`BadRows` collects the invalid rows of a file so that they are reported in one error.
"""

from __future__ import annotations

import bisect
import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from whichlayers.catalog import Kind
from whichlayers.errors import WhichlayersError
from whichlayers.text import counted

MAX_LISTED_ROWS = 5  # invalid rows that an error lists


class BadData(WhichlayersError):
    """A data file has invalid rows; the message gives their number and the file and line of the first few."""


@dataclass
class BadRows:
    """Collects the invalid rows of one file to report them in one error."""

    file: str
    first: list[tuple[int, str]] = field(default_factory=list)  # (line, message) of the first few in the file
    count: int = 0

    def add(self, line: int, message: str) -> None:
        """Record an invalid row."""
        self.count += 1
        bisect.insort(self.first, (line, message))
        del self.first[MAX_LISTED_ROWS:]

    def raise_if_any(self, advice: str = "Fix or remove these rows, then run again.") -> None:
        """Raise `BadData` if any row was recorded."""
        if not self.count:
            return
        listed = [f"  {self.file}:{line}: {message}" for line, message in self.first]
        more = [f"  and {self.count - len(listed):,} more"] if self.count > len(listed) else []
        raise BadData(
            "\n".join([f"{counted(self.count, 'bad row')} in {self.file}:", *listed, *more, advice])
        )


@dataclass(frozen=True, eq=False)
class Split:
    """Texts and labels of one split (n rows)."""

    texts: list[str]
    pairs: list[str] | None  # second text of each row, for sentence-pair tasks
    labels: np.ndarray  # (n,) int64 class indices, or float32 regression targets

    def __post_init__(self) -> None:
        n = len(self.texts)
        if len(self.labels) != n or (self.pairs is not None and len(self.pairs) != n):
            pairs = "no pairs" if self.pairs is None else counted(len(self.pairs), "pair")
            labels = counted(len(self.labels), "label")
            raise ValueError(
                f"columns of a split differ in length: {counted(n, 'text')}, {pairs} and {labels}"
            )

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class Task:
    """A labeled task: a training split, one or more evaluation splits, and its metrics.

    `evals` is {"": dev} for most tasks. The metrics of an additional split get its name as a suffix, such as
    accuracy_mismatched of MNLI.
    """

    name: str
    kind: Kind
    label_names: tuple[str, ...]  # name of each class index; () for regression
    metric: str  # the primary metric, which the report shows
    metrics: tuple[str, ...]  # all metrics that are computed, including the primary one
    train: Split
    evals: dict[str, Split]
    notes: tuple[str, ...] = ()  # warnings for the user, such as skipped rows

    def __post_init__(self) -> None:
        if self.metric not in self.metrics:
            raise ValueError(f"{self.name}: primary metric {self.metric!r} is not in metrics {self.metrics}")
        if "" not in self.evals:
            raise ValueError(f"{self.name}: evals must contain the main dev split under the key ''")
        dtype = np.int64 if self.kind == "classification" else np.float32
        for split in (self.train, *self.evals.values()):
            if split.labels.dtype != dtype:
                raise ValueError(
                    f"{self.name}: labels of a {self.kind} task must be {dtype.__name__}, not {split.labels.dtype}"
                )

    @property
    def n_outputs(self) -> int:
        """Number of classes; 1 for regression."""
        return len(self.label_names) if self.kind == "classification" else 1

    @property
    def class_counts(self) -> dict[str, int]:
        """Number of training rows of each class, by its name; empty for regression."""
        if self.kind == "regression":
            return {}
        counts = np.bincount(self.train.labels, minlength=self.n_outputs)
        return dict(zip(self.label_names, counts.tolist(), strict=True))

    @cached_property
    def fingerprint(self) -> str:
        """Hash (16 hex digits) of everything that affects results: texts, labels, kind and metrics, but not names."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(f"{self.kind}\0{self.n_outputs}\0{self.metric}\0{','.join(self.metrics)}".encode())
        for name, split in [("train", self.train), *(("eval/" + k, v) for k, v in self.evals.items())]:
            digest.update(f"\0{name}\0{len(split)}\0{split.pairs is not None}".encode())
            for texts in (split.texts, split.pairs or []):
                lengths = np.fromiter(map(len, texts), dtype="<i8", count=len(texts))
                digest.update(lengths.tobytes())  # so that the boundaries between texts matter
                digest.update("".join(texts).encode())
            digest.update(np.ascontiguousarray(split.labels).tobytes())
        return digest.hexdigest()
