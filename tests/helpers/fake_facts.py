"""Models and tasks that exist only as facts: a depth, a number of rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from whichlayers.study.file import Study


@dataclass(frozen=True)
class FakeModel:
    name: str
    fingerprint: str
    depth: int
    has_pooler: bool = True


@dataclass(frozen=True)
class FakeTask:
    name: str
    fingerprint: str
    train_rows: int


@dataclass(frozen=True)
class FakeCorpus:
    name: str
    fingerprint: str
    can_choose: bool


@dataclass
class FakeFacts:
    depth: int = 12
    rows: int = 100_000
    has_pooler: bool = True
    rows_of: dict[str, int] = field(default_factory=lambda: {"CoLA": 8551})
    one_fingerprint: str | None = None
    can_choose: bool = True  # corpora have dev sentences

    def model_facts(self, model):
        return FakeModel(model.name, self.one_fingerprint or f"m:{model.name}", self.depth, self.has_pooler)

    def task_facts(self, task):
        rows = self.rows_of.get(task.name, self.rows)
        return FakeTask(task.name, self.one_fingerprint or f"t:{task.name}", rows)

    def corpus_facts(self, corpus):
        return FakeCorpus(corpus.name, self.one_fingerprint or f"c:{corpus.name}", self.can_choose)


def a_study(**settings) -> Study:
    plain = {
        "name": "x",
        "models": ["some/model"],
        "tasks": ["builtin:sentiment"],
        "experiments": ["incremental"],
        "train_sizes": [240],
        "trials": 1,
    }
    return Study(**(plain | settings))
