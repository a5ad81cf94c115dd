"""The models, tasks and corpora of a study, loaded once per process and cached; their metadata.

The main process reads the metadata of each section of the study file (`model_info`, `task_info`, `corpus_info`) before
training starts. Workers load models and data by trial (`encoder`, `data`, `corpus`)
with an `AssetIndex` from the main process: they do not access the hub, and raise an error if the data have changed
since the run started.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whichlayers.errors import WhichlayersError
from whichlayers.results.records import DataStatistics, ModelRow, TaskRow
from whichlayers.runs.asset_index import (
    CORPUS_KEYS,
    TASK_KEYS,
    AssetIndex,
    CorpusInfo,
    DataSource,
    TaskInfo,
)
from whichlayers.trial import Trial, WordProbe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from whichlayers.config.corpus import CorpusSpec
    from whichlayers.config.sections import ModelSpec, TaskSpec
    from whichlayers.data.corpora import Corpus
    from whichlayers.data.tasks import Task
    from whichlayers.data.tokenize import TokenizedTask
    from whichlayers.models.load import ModelFiles, ModelInfo
    from whichlayers.probes.alignment import Alignment

DataKey = tuple[str, str, int]  # task, model with its prompt, maximum length
MAX_KEPT_BYTES = 2e9  # of loaded models that are kept while another one is loaded


class Assets:
    """Loads models, tasks and corpora, and keeps them in memory.

    Args:
        cache: Folder for tokenized tasks and hidden states; None: no cache on disk.
    """

    def __init__(self, cache: Path | None) -> None:
        self.index = AssetIndex(cache)
        self._lock = threading.RLock()  # a background thread may load those of the next stack
        self._files: dict[tuple[str, str | None, bool], ModelFiles] = {}
        self._model_info: dict[str, ModelInfo] = {}
        self._encoders: dict[str, PreTrainedModel] = {}
        self._tokenizers: dict[tuple[str, bool | None], PreTrainedTokenizerFast] = {}
        self._fingerprints: dict[DataSource, str] = {}
        self._tasks: dict[str, Task] = {}
        self._guess_scores: dict[str, dict[str, float]] = {}
        self._data: dict[DataKey, TokenizedTask] = {}
        self._corpora: dict[str, Corpus] = {}
        # by model fingerprint, then by corpus: words aligned with the subwords of the model's tokenizer
        self.alignments: dict[str, dict[str, Alignment]] = {}

    @classmethod
    def from_index(cls, index: AssetIndex) -> Assets:
        """Assets of a worker process."""
        assets = cls(index.cache)
        assets.index = index
        return assets

    # --- by section of the study file ---

    def model_files(self, spec: ModelSpec) -> ModelFiles:
        """The files of a model; downloads them if necessary."""
        from whichlayers.models.load import resolve

        key = (spec.name, spec.revision, spec.allow_pickle)
        if key not in self._files:
            self._files[key] = resolve(spec.name, revision=spec.revision, allow_pickle=spec.allow_pickle)
        files = self._files[key]
        self.index.models.setdefault(files.fingerprint, files)
        return files

    def model_info(self, spec: ModelSpec) -> ModelInfo:
        """Depth, hidden size and other properties of a model, without loading its weights."""
        from whichlayers.models.load import describe

        files = self.model_files(spec)
        if files.fingerprint not in self._model_info:
            self._model_info[files.fingerprint] = describe(files)
        return self._model_info[files.fingerprint]

    def task_info(self, spec: TaskSpec) -> TaskInfo:
        """Size, labels and metrics of a task."""
        source = DataSource.from_spec(spec, TASK_KEYS)
        if source not in self._fingerprints:
            task = source.load_task()
            self._fingerprints[source] = task.fingerprint
            self._tasks[task.fingerprint] = task
            self.index.tasks.setdefault(task.fingerprint, source)
        task = self._tasks[self._fingerprints[source]]
        if task.fingerprint not in self._guess_scores:
            from whichlayers.data.metrics import guess_scores

            labels = {name: split.labels for name, split in task.evals.items()}
            self._guess_scores[task.fingerprint] = guess_scores(task.metrics, task.train.labels, labels)
        return TaskInfo(
            task.name,
            task.fingerprint,
            len(task.train),
            task.kind,
            task.metric,
            task.metrics,
            len(task.label_names),
            len(task.evals[""]),
            task.class_counts,
            self._guess_scores[task.fingerprint],
            task.train.pairs is not None,
        )

    def corpus_info(self, spec: CorpusSpec) -> CorpusInfo:
        """Size of a corpus, and whether it has validation data."""
        from whichlayers.probes.labels import majority_accuracy, tag_ids

        corpus = self._load_corpus(DataSource.from_spec(spec, CORPUS_KEYS))
        tags = corpus.train.tag_names
        labels = tag_ids(corpus.train, tags)
        return CorpusInfo(
            corpus.name,
            corpus.fingerprint,
            corpus.train.n_words,
            corpus.has_validation_data,
            dict(zip(tags, np.bincount(labels, minlength=len(tags)).tolist(), strict=True)),
            majority_accuracy(labels, tag_ids(corpus.test, tags), len(tags)),
        )

    def _load_corpus(self, source: DataSource) -> Corpus:
        known = next((f for f, s in self.index.corpora.items() if s == source and f in self._corpora), None)
        if known is not None:
            return self._corpora[known]
        corpus = source.load_corpus()
        self.index.corpora.setdefault(corpus.fingerprint, source)
        return self._corpora.setdefault(corpus.fingerprint, corpus)

    def model_rows(self, specs: Iterable[ModelSpec]) -> list[ModelRow]:
        """Rows of the table `models` in results.db."""
        models = [(spec, self.model_info(spec)) for spec in specs]
        return [ModelRow(m.fingerprint, spec.name, spec.revision, m.family, m.depth) for spec, m in models]

    def task_rows(self, specs: Iterable[TaskSpec]) -> list[TaskRow]:
        """Rows of the table `tasks` in results.db."""
        tasks = map(self.task_info, specs)
        return [
            TaskRow(
                *(t.fingerprint, t.name, t.kind, t.metric, t.metrics, t.train_rows),
                guess_scores=t.guess_scores,
                class_counts=t.class_counts or None,
            )
            for t in tasks
        ]

    def corpus_rows(self, specs: Iterable[CorpusSpec]) -> list[TaskRow]:
        """Rows of the table `tasks` in results.db for corpora."""
        corpora = map(self.corpus_info, specs)
        return [
            TaskRow(
                *(c.fingerprint, c.name, "tagging", "accuracy", ("accuracy",), c.train_words),
                guess_scores={"accuracy": c.guess_accuracy},
                class_counts=c.tag_counts,
            )
            for c in corpora
        ]

    def data_statistics(
        self, tasks: Iterable[TaskSpec], corpora: Iterable[CorpusSpec]
    ) -> dict[str, DataStatistics]:
        """Numbers of examples, words, sentences, classes and tags of the study's data, by fingerprint."""
        infos = map(self.task_info, tasks)
        found = {t.fingerprint: DataStatistics(t.classes, t.train_rows, t.dev_rows) for t in infos}
        for spec in corpora:
            corpus = self._load_corpus(DataSource.from_spec(spec, CORPUS_KEYS))
            words = {name: split.n_words for name, split in corpus.splits.items()}
            sentences = {f"{name}_sentences": len(split.sentences) for name, split in corpus.splits.items()}
            tags = {tag for sentence in corpus.train.sentences for tag in sentence.tags}
            found[corpus.fingerprint] = DataStatistics(len(tags), **words, **sentences)
        return found

    # --- by trial ---

    def model_of(self, trial: Trial) -> ModelInfo:
        """Metadata of a trial's model, after `model_info` was called for it."""
        return self._model_info[trial.model_fingerprint]

    def _model_files_of(self, trial: Trial) -> ModelFiles:
        return self.index.models[trial.model_fingerprint]

    def encoder(self, trial: Trial) -> PreTrainedModel:
        """The pretrained model of a trial. Others that were loaded before are kept if they are small."""
        from whichlayers.models.load import load_encoder

        key = trial.model_fingerprint
        with self._lock:
            if key not in self._encoders:
                if sum(4 * model.num_parameters() for model in self._encoders.values()) > MAX_KEPT_BYTES:
                    self._encoders.clear()
                self._encoders[key] = load_encoder(self._model_files_of(trial))
            return self._encoders[key]

    def tokenizer(self, trial: Trial) -> PreTrainedTokenizerFast:
        """The tokenizer of a trial's model."""
        from whichlayers.models.tokenizers import load_tokenizer

        key = (trial.model_fingerprint, trial.bos)
        with self._lock:
            if key not in self._tokenizers:
                self._tokenizers[key] = load_tokenizer(self._model_files_of(trial), trial.bos)
            return self._tokenizers[key]

    def data(self, trial: Trial) -> TokenizedTask:
        """The tokenized task of a trial."""
        from whichlayers.data.tokenize import tokenize

        length, key = trial.training.max_length, data_key(trial)
        with self._lock:
            if key not in self._data:
                task, tokenizer = self._task_of(trial), self.tokenizer(trial)
                fingerprint, template = trial.input_fingerprint, trial.pair_template
                self._data[key] = tokenize(task, tokenizer, length, self.index.cache, fingerprint, template)
            return self._data[key]

    def corpus(self, word_probe: WordProbe) -> Corpus:
        """The corpus of a word probe."""
        fingerprint = word_probe.fingerprint
        with self._lock:
            if fingerprint not in self._corpora:
                corpus = self.index.corpora[fingerprint].load_corpus()
                if corpus.fingerprint != fingerprint:
                    raise WhichlayersError(
                        f"the corpus {word_probe.corpus} has changed since the run started: run the study again to use"
                        " the new data, or restore the old data"
                    )
                self._corpora[fingerprint] = corpus
            return self._corpora[fingerprint]

    def _task_of(self, trial: Trial) -> Task:
        if (task := self._tasks.get(trial.task_fingerprint)) is not None:
            return task
        task = self.index.tasks[trial.task_fingerprint].load_task()
        if task.fingerprint != trial.task_fingerprint:
            raise WhichlayersError(
                f"the data of task {trial.task} have changed since the run started: run the study again to"
                " use the new data, or restore the old data"
            )
        return task

    # --- before training ---

    def notes(self) -> list[str]:
        """Notes from reading the data, such as the number of skipped rows."""
        loaded: list[Task | Corpus] = [*self._tasks.values(), *self._corpora.values()]
        return [f"{data.name}: {note}" for data in loaded for note in data.notes]

    def truncated(self, trials: Iterable[Trial]) -> dict[str, str]:
        """Notes about texts longer than `max_length`, for the tokenized tasks of these trials, by `tokens_key`."""
        notes = {}
        for trial in trials:
            data = self._data.get(data_key(trial))
            if data is None or tokens_key(trial) in notes or not data.truncated[0]:
                continue
            count, total = data.truncated
            notes[tokens_key(trial)] = (
                f"{trial.task}: {count:,} of {total:,} training and dev examples ({100 * count / total:.3g}%) are"
                f" longer than max_length = {trial.training.max_length} tokens and truncated ({trial.model})"
            )
        return notes

    def prompts(self, trials: Iterable[Trial]) -> dict[str, str]:
        """Notes about the templates and BOS tokens of these trials, by `prompt_key`."""
        from whichlayers.models.tokenizers import starts_with_bos

        notes: dict[str, str] = {}
        for trial in trials:
            if prompt_key(trial) in notes:
                continue
            parts = []
            if trial.pair_template:
                template = trial.pair_template.replace("\n", "\\n")
                parts.append(f"two texts are one prompt, {template}")
            if trial.bos is not None or (
                self.model_of(trial).causal and starts_with_bos(self.tokenizer(trial))
            ):
                parts.append(f"texts start {'without' if trial.bos is False else 'with'} the BOS token")
            if parts:
                name = trial.task or (trial.word_probe.corpus if trial.word_probe else "")
                notes[prompt_key(trial)] = f"{name}: {'; '.join(parts)} ({trial.model})"
        return notes

    def check(self, trials: Iterable[Trial]) -> None:
        """Load every model and tokenize every task that the trials use.

        Errors are raised before training starts, and workers find the tokenized tasks in the cache.
        """
        seen: set[DataKey] = set()
        for trial in trials:
            if (key := data_key(trial)) not in seen:
                seen.add(key)
                self._check_length(trial)
                self.load(trial)

    def load(self, trial: Trial) -> None:
        """Load the model and the tokenized task of a trial."""
        self.encoder(trial)
        if trial.train_size:
            self.data(trial)

    def bytes_to_load(self, trial: Trial) -> int:
        """Host memory that `load` will take, in bytes: the weights in float32, unless the model is loaded."""
        from whichlayers.models.find import float32_bytes

        with self._lock:
            loaded = trial.model_fingerprint in self._encoders
            return 0 if loaded else float32_bytes(self._model_files_of(trial))

    def check_models(self, trials: Iterable[Trial]) -> None:
        """Load every model and tokenizer, one after another, without tokenizing the tasks."""
        seen: set[tuple[str, int]] = set()
        for trial in trials:
            if (key := (trial.input_fingerprint, trial.training.max_length)) not in seen:
                self._check_length(trial)
                self.tokenizer(trial)
                self.encoder(trial)
                self._encoders.clear()
            seen.add(key)

    def _check_length(self, trial: Trial) -> None:
        """Raise WhichlayersError if the model does not support the sequence length of the task."""
        longest = self.model_of(trial).max_length
        if trial.train_size and longest is not None and trial.training.max_length > longest:
            raise WhichlayersError(
                f"training.max_length = {trial.training.max_length}, but {trial.model} supports at most"
                f" {longest} tokens: set it to {longest} or less"
            )

    def tokenized_tasks(self) -> dict[DataKey, TokenizedTask]:
        """The tasks that `check` tokenized, by `data_key`."""
        return dict(self._data)

    def loaded_corpora(self) -> dict[str, Corpus]:
        """The loaded corpora by fingerprint."""
        return dict(self._corpora)

    def release(self) -> None:
        """Free the memory of models and data; used when worker processes train."""
        self._encoders.clear()
        self._data.clear()
        self._tasks.clear()
        self._fingerprints.clear()
        self._corpora.clear()

    @cached_property
    def weights_bytes(self) -> int:
        """Memory of the weights of the largest model in bytes, in float32."""
        from whichlayers.models.find import float32_bytes

        return max(map(float32_bytes, self.index.models.values()), default=0)


def data_key(trial: Trial) -> DataKey:
    """Identifies the tokenized task of a trial."""
    return trial.task_fingerprint, trial.input_fingerprint, trial.training.max_length


def tokens_key(trial: Trial) -> str:
    """`data_key` as text."""
    return " ".join(map(str, data_key(trial)))


def prompt_key(trial: Trial) -> str:
    """Identifies the task and the prompt of a trial."""
    return f"{trial.task_fingerprint} {trial.input_fingerprint} prompt"


def cache_folder(study_folder: Path) -> Path:
    """The cache folder: WHICHLAYERS_CACHE, which several studies may share, else a folder in the study folder."""
    shared = os.environ.get("WHICHLAYERS_CACHE")
    return Path(shared).expanduser() if shared else study_folder / "cache"


def penalties_folder(cache: Path | None) -> Path | None:
    """The cache folder for L1 and L2 penalties found by grid search."""
    return cache and cache / "penalties"
