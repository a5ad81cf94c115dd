"""What a task is once it has been read: texts, labels, a metric, and a fingerprint of all three.

Every reader (GLUE, your own files, the built-in grammar) ends in a `Task`; nothing after that knows where it
came from. `BadRows` collects what is wrong with a file so that one error tells the user about all of it.
"""

from __future__ import annotations

import bisect
import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from whichlayers.errors import WhichlayersError
from whichlayers.text import counted

Kind = Literal["classification", "regression"]
BAD_ROWS_SHOWN = 5


class BadData(WhichlayersError):
    """Rows that cannot be used; the message names file and line of the first few and counts them all."""


@dataclass
class BadRows:
    """Collects complaints about one file and raises them together."""

    file: str
    first: list[tuple[int, str]] = field(default_factory=list)  # (line, complaint) of the topmost few
    count: int = 0

    def add(self, line: int, complaint: str) -> None:
        self.count += 1
        bisect.insort(self.first, (line, complaint))
        del self.first[BAD_ROWS_SHOWN:]

    def raise_if_any(self, advice: str = "Correct or remove these rows, then run again.") -> None:
        if not self.count:
            return
        shown = [f"  {self.file}:{line}: {complaint}" for line, complaint in self.first]
        more = [f"  and {self.count - len(shown):,} more"] if self.count > len(shown) else []
        raise BadData("\n".join([f"{counted(self.count, 'bad row')} in {self.file}:", *shown, *more, advice]))


@dataclass(frozen=True, eq=False)
class Split:
    """Examples and their labels, row by row."""

    texts: list[str]
    pairs: list[str] | None  # the second text of each row, for tasks on two texts
    labels: np.ndarray  # (n,) int64 class numbers, or float32 targets

    def __post_init__(self) -> None:
        n = len(self.texts)
        if len(self.labels) != n or (self.pairs is not None and len(self.pairs) != n):
            pairs = "no" if self.pairs is None else len(self.pairs)
            raise ValueError(f"a split with {n} texts, {pairs} pairs and {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class Task:
    """A labelled task: a training split, one or more evaluation splits, and how predictions are scored.

    `evals` is {"": dev} for most tasks. The metrics of a further split are suffixed with its name, as in
    accuracy_mismatched of MNLI.
    """

    name: str
    kind: Kind
    label_names: tuple[str, ...]  # class i is called label_names[i]; () for regression
    metric: str  # the one that a study reports
    metrics: tuple[str, ...]  # all that are computed, the primary one among them
    train: Split
    evals: dict[str, Split]
    notes: tuple[str, ...] = ()  # what a reader did that the user should know, such as rows it left out

    def __post_init__(self) -> None:
        if self.metric not in self.metrics:
            raise ValueError(f"{self.name}: primary metric {self.metric} is not among {self.metrics}")
        if "" not in self.evals:
            raise ValueError(f"{self.name}: evals must have the main dev split under the empty name")
        wanted = np.int64 if self.kind == "classification" else np.float32
        for split in (self.train, *self.evals.values()):
            if split.labels.dtype != wanted:
                raise ValueError(f"{self.name}: labels of a {self.kind} task are {split.labels.dtype}")

    @property
    def n_outputs(self) -> int:
        return len(self.label_names) if self.kind == "classification" else 1

    @cached_property
    def fingerprint(self) -> str:
        """16 hex characters over all that decides a result: examples, labels, kind, metrics; not names."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(f"{self.kind}\0{self.n_outputs}\0{self.metric}\0{','.join(self.metrics)}".encode())
        for name, split in [("train", self.train), *(("eval/" + k, v) for k, v in self.evals.items())]:
            digest.update(f"\0{name}\0{len(split)}\0{split.pairs is not None}".encode())
            for texts in (split.texts, split.pairs or []):
                lengths = np.fromiter(map(len, texts), dtype="<i8", count=len(texts))
                digest.update(lengths.tobytes())  # so that no two ways of cutting one text look alike
                digest.update("".join(texts).encode())
            digest.update(np.ascontiguousarray(split.labels).tobytes())
        return digest.hexdigest()
