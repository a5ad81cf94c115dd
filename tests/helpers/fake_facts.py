"""Fake metadata of models, tasks and corpora, and a minimal study."""

from __future__ import annotations

from dataclasses import dataclass, field

from whichlayers.study.study_file import Study


@dataclass(frozen=True)
class FakeMetadata:
    """Metadata of a model, task or corpus."""

    name: str
    fingerprint: str
    depth: int = 12
    has_pooler: bool = True
    causal: bool = False
    train_rows: int = 0
    has_pairs: bool = False
    has_validation_data: bool = True
    linear_modules: dict[str, tuple[int, int]] = field(
        default_factory=lambda: {
            "attention.query": (64, 64),
            "attention.dense": (64, 64),
            "mlp.dense": (64, 256),
        }
    )
    has_biases: bool = True


@dataclass
class FakeFacts:
    """An `InfoSource` for `expand`, with the same metadata for all models and tasks."""

    depth: int = 12
    rows: int = 100_000
    has_pooler: bool = True
    rows_of: dict[str, int] = field(default_factory=lambda: {"CoLA": 8551})
    one_fingerprint: str | None = None
    has_validation_data: bool = True  # corpora have dev sentences
    has_biases: bool = True
    without_biases: tuple[str, ...] = ()
    decoders: tuple[str, ...] = ()
    pair_tasks: tuple[str, ...] = ()

    def model_info(self, model):
        fingerprint = self.one_fingerprint or f"m:{model.name}"
        return FakeMetadata(
            model.name,
            fingerprint,
            depth=self.depth,
            has_pooler=self.has_pooler,
            causal=model.name in self.decoders,
            has_biases=self.has_biases and model.name not in self.without_biases,
        )

    def task_info(self, task):
        rows = self.rows_of.get(task.name, self.rows)
        fingerprint = self.one_fingerprint or f"t:{task.name}"
        return FakeMetadata(task.name, fingerprint, train_rows=rows, has_pairs=task.name in self.pair_tasks)

    def corpus_info(self, corpus):
        fingerprint = self.one_fingerprint or f"c:{corpus.name}"
        return FakeMetadata(corpus.name, fingerprint, has_validation_data=self.has_validation_data)


def a_study(**settings) -> Study:
    """A minimal study with these settings."""
    defaults = {
        "name": "x",
        "models": ["some/model"],
        "tasks": ["builtin:sentiment"],
        "experiments": ["incremental"],
        "train_sizes": [240],
        "trials": 1,
    }
    return Study(**(defaults | settings))
