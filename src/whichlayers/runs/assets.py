"""The models and tasks of a study, each loaded once in a process and kept.

The driver asks by what the study file says (`model_facts`, `task_facts`), before anything trains. A worker
asks by trial (`encoder`, `data`), with a catalogue from the driver that says where things are: no worker
looks for a model on the hub, and one that finds other data than the driver saw refuses to train.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.errors import WhichlayersError
from whichlayers.results.records import ModelRow, TaskRow
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from whichlayers.config.corpus import CorpusSpec
    from whichlayers.config.sections import ModelSpec, TaskSpec
    from whichlayers.data.corpora import Corpus
    from whichlayers.data.tasks import Task
    from whichlayers.data.tokenize import TokenisedTask
    from whichlayers.models.load import ModelFacts, ModelFiles
    from whichlayers.probes.alignment import Alignment

CORPUS_KEYS = ("source", "train", "test", "dev", "format", "column", "train_words", "test_words")
TASK_KEYS = ("source", "train", "dev", "text", "pair", "label", "kind", "metric")


@dataclass(frozen=True)
class TaskFacts:
    """What a study needs to know of a task before it is tokenised."""

    name: str
    fingerprint: str
    train_rows: int
    kind: str
    metric: str
    metrics: tuple[str, ...]
    classes: int  # 0: regression
    dev_rows: int


@dataclass(frozen=True)
class TaskSource:
    """Where a task comes from: the arguments of `load_task`."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def of(spec: TaskSpec) -> TaskSource:
        return TaskSource(spec.name, tuple((key, getattr(spec, key, None)) for key in TASK_KEYS))

    def load(self) -> Task:
        from whichlayers.data.load_task import load_task

        return load_task(self.name, **dict(self.settings))


@dataclass(frozen=True)
class CorpusFacts:
    name: str
    fingerprint: str
    train_words: int
    can_choose: bool


@dataclass(frozen=True)
class CorpusSource:
    """Where a tagged corpus comes from: the arguments of `load_corpus`."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def of(spec: CorpusSpec) -> CorpusSource:
        return CorpusSource(spec.name, tuple((key, getattr(spec, key)) for key in CORPUS_KEYS))

    def load(self) -> Corpus:
        from whichlayers.data.corpora import load_corpus

        return load_corpus(self.name, **dict(self.settings))


@dataclass
class Catalogue:
    """Where every model, task and corpus of a study is, by fingerprint."""

    cache: Path | None
    models: dict[str, ModelFiles] = field(default_factory=dict)
    tasks: dict[str, TaskSource] = field(default_factory=dict)
    corpora: dict[str, CorpusSource] = field(default_factory=dict)


class Subjects:
    def __init__(self, cache: Path | None) -> None:
        self.catalogue = Catalogue(cache)
        self._files: dict[tuple[str, str | None, bool], ModelFiles] = {}
        self._facts: dict[str, ModelFacts] = {}
        self._encoders: dict[str, PreTrainedModel] = {}
        self._tokenizers: dict[str, PreTrainedTokenizerFast] = {}
        self._fingerprints: dict[TaskSource, str] = {}
        self._tasks: dict[str, Task] = {}
        self._data: dict[tuple[str, str, int], TokenisedTask] = {}
        self._corpora: dict[str, Corpus] = {}
        self.aligned: dict[
            str, dict[str, Alignment]
        ] = {}  # by model and words: corpora as its tokenizer cuts them

    @classmethod
    def from_catalogue(cls, catalogue: Catalogue) -> Subjects:
        subjects = cls(catalogue.cache)
        subjects.catalogue = catalogue
        return subjects

    # --- by what the study file says ---

    def files(self, spec: ModelSpec) -> ModelFiles:
        from whichlayers.models.load import resolve

        asked = (spec.name, spec.revision, spec.allow_pickle)
        if asked not in self._files:
            self._files[asked] = resolve(spec.name, revision=spec.revision, allow_pickle=spec.allow_pickle)
        files = self._files[asked]
        self.catalogue.models.setdefault(files.fingerprint, files)
        return files

    def model_facts(self, spec: ModelSpec) -> ModelFacts:
        from whichlayers.models.load import describe

        files = self.files(spec)
        if files.fingerprint not in self._facts:
            self._facts[files.fingerprint] = describe(files)
        return self._facts[files.fingerprint]

    def task_facts(self, spec: TaskSpec) -> TaskFacts:
        source = TaskSource.of(spec)
        if source not in self._fingerprints:
            task = source.load()
            self._fingerprints[source] = task.fingerprint
            self._tasks[task.fingerprint] = task
            self.catalogue.tasks.setdefault(task.fingerprint, source)
        task = self._tasks[self._fingerprints[source]]
        return TaskFacts(
            task.name,
            task.fingerprint,
            len(task.train),
            task.kind,
            task.metric,
            task.metrics,
            len(task.label_names),
            len(task.evals[""]),
        )

    def corpus_facts(self, spec: CorpusSpec) -> CorpusFacts:
        corpus = self._corpus_from(CorpusSource.of(spec))
        return CorpusFacts(corpus.name, corpus.fingerprint, corpus.train.n_words, corpus.can_choose)

    def _corpus_from(self, source: CorpusSource) -> Corpus:
        known = next(
            (f for f, s in self.catalogue.corpora.items() if s == source and f in self._corpora), None
        )
        if known is not None:
            return self._corpora[known]
        corpus = source.load()
        self.catalogue.corpora.setdefault(corpus.fingerprint, source)
        return self._corpora.setdefault(corpus.fingerprint, corpus)

    def model_rows(self, specs: Iterable[ModelSpec]) -> list[ModelRow]:
        facts = [(spec, self.model_facts(spec)) for spec in specs]
        return [ModelRow(f.fingerprint, spec.name, spec.revision, f.family, f.depth) for spec, f in facts]

    def task_rows(self, specs: Iterable[TaskSpec]) -> list[TaskRow]:
        facts = map(self.task_facts, specs)
        return [TaskRow(f.fingerprint, f.name, f.kind, f.metric, f.metrics, f.train_rows) for f in facts]

    def corpus_rows(self, specs: Iterable[CorpusSpec]) -> list[TaskRow]:
        facts = map(self.corpus_facts, specs)
        return [
            TaskRow(f.fingerprint, f.name, "tagging", "accuracy", ("accuracy",), f.train_words) for f in facts
        ]

    # --- by trial ---

    def stack_key(self, trial: Trial) -> Hashable:
        from whichlayers.engine.finetune import stack_key
        from whichlayers.probes.sentence_probe import stack_key as probe_key
        from whichlayers.runs.plan import words_key

        if trial.word_probe is not None:
            return words_key(trial)
        if trial.probe is not None:
            return probe_key(trial)
        facts = self._facts[trial.model_fingerprint]
        return stack_key(trial, facts.family, facts.depth)

    def _files_of(self, trial: Trial) -> ModelFiles:
        return self.catalogue.models[trial.model_fingerprint]

    def encoder(self, trial: Trial) -> PreTrainedModel:
        from whichlayers.models.load import load_encoder

        key = trial.model_fingerprint
        if key not in self._encoders:
            self._encoders[key] = load_encoder(self._files_of(trial))
        return self._encoders[key]

    def tokenizer(self, trial: Trial) -> PreTrainedTokenizerFast:
        from whichlayers.models.load import load_tokenizer

        key = trial.model_fingerprint
        if key not in self._tokenizers:
            self._tokenizers[key] = load_tokenizer(self._files_of(trial))
        return self._tokenizers[key]

    def data(self, trial: Trial) -> TokenisedTask:
        from whichlayers.data.tokenize import tokenise

        length = trial.training.max_length
        key = (trial.task_fingerprint, trial.model_fingerprint, length)
        if key not in self._data:
            task = self._task_of(trial)
            self._data[key] = tokenise(
                task, self.tokenizer(trial), length, self.catalogue.cache, trial.model_fingerprint
            )
        return self._data[key]

    def corpus(self, trial: Trial) -> Corpus:
        assert trial.word_probe is not None
        wanted = trial.word_probe.fingerprint
        if wanted not in self._corpora:
            corpus = self.catalogue.corpora[wanted].load()
            if corpus.fingerprint != wanted:
                raise WhichlayersError(
                    f"the corpus {trial.word_probe.corpus} has changed since the run began: run the study again to"
                    " ask about the new one, or put the old one back"
                )
            self._corpora[wanted] = corpus
        return self._corpora[wanted]

    def _task_of(self, trial: Trial) -> Task:
        if (task := self._tasks.get(trial.task_fingerprint)) is not None:
            return task
        task = self.catalogue.tasks[trial.task_fingerprint].load()
        if task.fingerprint != trial.task_fingerprint:
            raise WhichlayersError(
                f"the data of task {trial.task} have changed since the run began: run the study again to"
                " train on the new data, or put the old data back"
            )
        return task

    # --- before training ---

    def notes(self) -> list[str]:
        """What the readers of the data did that the user should know, such as rows they left out."""
        read: list[Task | Corpus] = [*self._tasks.values(), *self._corpora.values()]
        return [f"{data.name}: {note}" for data in read for note in data.notes]

    def check(self, trials: Iterable[Trial]) -> None:
        """Load every model and tokenise every task that the trials use, so that what cannot work fails now
        and workers find the tokens made."""
        seen: set[tuple[str, str, int]] = set()
        for trial in trials:
            if trial.word_probe is not None and trial.finetuning is None:
                self.encoder(trial)
                continue
            use = (trial.model_fingerprint, trial.task_fingerprint, trial.training.max_length)
            if use in seen:
                continue
            seen.add(use)
            self._check_length(trial)
            self.encoder(trial)
            self.data(trial)

    def check_models(self, trials: Iterable[Trial]) -> None:
        """That every model and tokenizer loads, one after another; what they would read is not tokenised."""
        seen: set[tuple[str, int]] = set()
        for trial in trials:
            if (use := (trial.model_fingerprint, trial.training.max_length)) not in seen:
                if trial.train_size:
                    self._check_length(trial)
                self.tokenizer(trial)
                self.encoder(trial)
                self._encoders.clear()
            seen.add(use)

    def _check_length(self, trial: Trial) -> None:
        longest = self._facts[trial.model_fingerprint].max_length
        if longest is not None and trial.training.max_length > longest:
            raise WhichlayersError(
                f"training.max_length = {trial.training.max_length}, but {trial.model} reads at most"
                f" {longest} tokens: set it to {longest} or less"
            )

    def tokenised(self) -> dict[tuple[str, str, int], TokenisedTask]:
        """What `check` tokenised, by task, model and longest input."""
        return dict(self._data)

    def corpora(self) -> dict[str, Corpus]:
        return dict(self._corpora)

    def let_go(self) -> None:
        """Free what was loaded, when the training is done elsewhere."""
        self._encoders.clear()
        self._data.clear()
        self._tasks.clear()
        self._fingerprints.clear()
        self._corpora.clear()

    @cached_property
    def weights_bytes(self) -> int:
        """Size of the largest model's files, which decides how many workers fit into memory."""
        sizes = [
            sum(f.stat().st_size for f in files.folder.iterdir() if f.suffix in (".safetensors", ".bin"))
            for files in self.catalogue.models.values()
        ]
        return max(sizes, default=0)


def cache_folder(study_folder: Path) -> Path:
    """Where tokens are kept: in the study folder, or in WHICHLAYERS_CACHE, which several studies may share."""
    shared = os.environ.get("WHICHLAYERS_CACHE")
    return Path(shared).expanduser() if shared else study_folder / "cache"


def penalties_folder(cache: Path | None) -> Path | None:
    """Where L1 and L2 are kept that a search found."""
    return cache and cache / "penalties"
