"""Metrics, tasks and corpora that are known by name.

The study file is validated against these lists, and `data` loads tasks and corpora from them. The module imports only
the standard library, so that a study file is read without models, data or the engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["classification", "regression"]
CorpusFormat = Literal["conll", "conllu", "pmb"]


@dataclass(frozen=True)
class Quantity:
    """A number in results, and how it is shown.

    Args:
        display_name: Its name in figures, tables and text.
        low, high: Its range.
        decimals: Number of decimals. None: it is a fraction of 1, shown in points (× 100).
    """

    display_name: str
    low: float = 0.0
    high: float = 1.0
    decimals: int | None = None


@dataclass(frozen=True)
class Metric(Quantity):
    """A metric of a task; higher is better. `data.metrics` computes it."""

    kind: Kind = "classification"
    binary_only: bool = False  # defined for two classes only


METRICS: dict[str, Metric] = {  # the first one of a kind is the default
    "accuracy": Metric("accuracy"),
    "f1": Metric("F1", binary_only=True),
    "macro_f1": Metric("macro F1"),
    "mcc": Metric("Matthews correlation", low=-1.0),
    "pearson": Metric("Pearson correlation", low=-1.0, kind="regression"),
    "spearman": Metric("Spearman correlation", low=-1.0, kind="regression"),
}
# what else is measured or computed
QUANTITIES: dict[str, Quantity] = {
    **METRICS,
    "compression": Quantity("compression", high=math.inf, decimals=2),
    "dev_loss": Quantity("evaluation loss", high=math.inf, decimals=3),
    "distance": Quantity("weight change", high=math.inf, decimals=3),
    "layers": Quantity("layers", high=math.inf, decimals=2),
    "log ratio": Quantity("log ratio", low=-math.inf, high=math.inf, decimals=3),
    "neurons": Quantity("fraction of all neurons"),
    "r": Quantity("r", low=-1.0, decimals=3),
    "rho": Quantity("rho", low=-1.0, decimals=3),
    "spectral norm, min-max scaled": Quantity("weight change, scaled", decimals=3),
    "spread": Quantity("fraction of the top neurons"),
}
DIFFERENCE = "difference in "  # prefix of the name of a difference


def quantity(name: str) -> Quantity:
    """A quantity by name; one that is not known is shown in points, by its name."""
    whole = name.removeprefix(DIFFERENCE)
    known = QUANTITIES.get(whole, Quantity(whole, low=-1.0))
    if name == whole:
        return known
    width = known.high - known.low
    return Quantity(DIFFERENCE + known.display_name, -width, width, known.decimals)


def metrics_of(kind: Kind) -> tuple[str, ...]:
    """Names of the metrics of this kind of task."""
    return tuple(name for name, metric in METRICS.items() if metric.kind == kind)


@dataclass(frozen=True)
class BuiltinTask:
    """Labels and metrics of a classification task in data/builtin/: NAME-train.tsv and NAME-dev.tsv."""

    label_names: tuple[str, ...]
    metrics: tuple[str, ...]  # the first one is the primary metric


# model families whose attention is causal: decoders
CAUSAL_FAMILIES = frozenset(
    (
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "olmo2",
        "opt",
        "phi3",
        "smollm3",
    )
)
BUILTIN = "builtin:"  # prefix of the names of built-in tasks and corpora
BUILTIN_TASKS: dict[str, BuiltinTask] = {
    # Is the sentence grammatical? Minimal pairs: agreement, verb forms, word order, case, ...
    "builtin:acceptability": BuiltinTask(("unacceptable", "acceptable"), ("accuracy", "mcc")),
    # Is the review positive or negative? With negation and contrast.
    "builtin:sentiment": BuiltinTask(("negative", "positive"), ("accuracy",)),
    # Does the sentence answer the question? Word overlap does not help.
    "builtin:question-answer": BuiltinTask(("entailment", "not_entailment"), ("accuracy",)),
}


@dataclass(frozen=True)
class GlueSpec:
    """Columns, labels and metrics of a GLUE task. Columns are (text, pair); pair is None for single-sentence tasks."""

    config: str  # its configuration name on the hub
    label_names: tuple[str, ...]  # in the hub's order; () for regression
    columns: tuple[str, str | None]  # in the TSV files
    hub_columns: tuple[str, str | None]
    label_columns: tuple[str, ...] = ("label",)  # in the TSV files; the first that exists is used
    file_labels: tuple[str, ...] = ("0", "1")  # class labels in the TSV files
    metrics: tuple[str, ...] = ("accuracy",)  # the first is the primary metric
    header: tuple[str, ...] | None = None  # column names of files without a header line
    evals: tuple[tuple[str, str, str], ...] = (("", "dev", "validation"),)  # (name, file, split on the hub)
    official_rows: tuple[int, ...] = ()  # train, then each evaluation split
    unlabeled: str | None = None  # label of rows without a gold label, skipped as in the official scripts
    # official files have malformed lines (skipped, as on the hub) and empty texts (kept)
    known_flaws: bool = False

    @property
    def kind(self) -> Kind:
        return "classification" if self.label_names else "regression"


ENTAILMENT = ("entailment", "not_entailment")
SENTENCES = ("sentence1", "sentence2")
GLUE: dict[str, GlueSpec] = {
    "CoLA": GlueSpec(
        config="cola",
        label_names=("unacceptable", "acceptable"),
        columns=("sentence", None),
        hub_columns=("sentence", None),
        metrics=("mcc", "accuracy"),
        header=("source", "label", "mark", "sentence"),
        official_rows=(8_551, 1_043),
    ),
    "SST-2": GlueSpec(
        config="sst2",
        label_names=("negative", "positive"),
        columns=("sentence", None),
        hub_columns=("sentence", None),
        official_rows=(67_349, 872),
    ),
    "MRPC": GlueSpec(
        config="mrpc",
        label_names=("not_equivalent", "equivalent"),
        columns=("#1 String", "#2 String"),
        hub_columns=SENTENCES,
        label_columns=("Quality",),
        metrics=("accuracy", "f1"),
        official_rows=(3_668, 408),
    ),
    "STS-B": GlueSpec(
        config="stsb",
        label_names=(),
        columns=SENTENCES,
        hub_columns=SENTENCES,
        label_columns=("score",),
        metrics=("pearson", "spearman"),
        official_rows=(5_749, 1_500),
    ),
    "QQP": GlueSpec(
        config="qqp",
        label_names=("not_duplicate", "duplicate"),
        columns=("question1", "question2"),
        hub_columns=("question1", "question2"),
        label_columns=("is_duplicate",),
        metrics=("accuracy", "f1"),
        official_rows=(363_846, 40_430),
        known_flaws=True,
    ),
    "MNLI": GlueSpec(
        config="mnli",
        label_names=("entailment", "neutral", "contradiction"),
        columns=SENTENCES,
        hub_columns=("premise", "hypothesis"),
        label_columns=("gold_label", "label"),
        file_labels=("entailment", "neutral", "contradiction"),
        evals=(
            ("", "dev_matched", "validation_matched"),
            ("mismatched", "dev_mismatched", "validation_mismatched"),
        ),
        official_rows=(392_702, 9_815, 9_832),
        unlabeled="-",
        known_flaws=True,
    ),
    "QNLI": GlueSpec(
        config="qnli",
        label_names=ENTAILMENT,
        columns=("question", "sentence"),
        hub_columns=("question", "sentence"),
        file_labels=ENTAILMENT,
        official_rows=(104_743, 5_463),
    ),
    "RTE": GlueSpec(
        config="rte",
        label_names=ENTAILMENT,
        columns=SENTENCES,
        hub_columns=SENTENCES,
        file_labels=ENTAILMENT,
        official_rows=(2_490, 277),
    ),
    "WNLI": GlueSpec(
        config="wnli",
        label_names=("not_entailment", "entailment"),
        columns=SENTENCES,
        hub_columns=SENTENCES,
        official_rows=(635, 71),
    ),
}
GLUE_ALIASES = {"sst": "SST-2", "sts": "STS-B", "multinli": "MNLI", "quora": "QQP"}


def glue_name(name: str) -> str | None:
    """The official name of a GLUE task, ignoring case and punctuation (sst2 -> SST-2); None if there is none."""
    normalized = _normalize(name)
    return next((task for task in GLUE if _normalize(task) == normalized), GLUE_ALIASES.get(normalized))


def _normalize(name: str) -> str:
    """Lower case, letters and digits only."""
    return "".join(c for c in name.lower() if c.isalnum())


@dataclass(frozen=True)
class CorpusFiles:
    """File layout of a tagged corpus, and the column of its tags."""

    folders: tuple[str, ...]  # possible names of its folder
    format: CorpusFormat
    column: str | int
    train: str
    test: str
    dev: str | None = None


# columns of the tags that have names; a conll file numbers its columns instead
TAG_COLUMNS: dict[str, dict[str, int]] = {
    "conllu": {"upos": 3, "xpos": 4},
    "pmb": {"sym": 2, "sem": 3, "cat": 4, "sns": 5, "rol": 6},
}
_BUILTIN_FILES = ("tagged-train.conll", "tagged-dev.conll")
_EWT = ("ud_english_ewt", "UD_English-EWT", "ud-english-ewt")
_EWT_FILES = tuple(f"en_ewt-ud-{part}.conllu" for part in ("train", "test", "dev"))
_PMB_FILES = ("train.conll", "test.conll", "dev.conll")
BUILTIN_CORPORA: dict[str, CorpusFiles] = {
    "builtin:pos": CorpusFiles(("builtin",), "conll", 1, *_BUILTIN_FILES),
    "builtin:chunk": CorpusFiles(("builtin",), "conll", 2, *_BUILTIN_FILES),
}
FOLDER_CORPORA: dict[str, CorpusFiles] = {  # of Durrani et al. 2021
    "UD-EWT:xpos": CorpusFiles(_EWT, "conllu", "xpos", *_EWT_FILES),
    "UD-EWT:upos": CorpusFiles(_EWT, "conllu", "upos", *_EWT_FILES),
    "CoNLL-2000:pos": CorpusFiles(("conll2000",), "conll", 1, "train.txt", "test.txt"),
    "CoNLL-2000:chunk": CorpusFiles(("conll2000",), "conll", 2, "train.txt", "test.txt"),
    "PMB:sem": CorpusFiles(("sem_pmb", "pmb"), "pmb", "sem", *_PMB_FILES),
}
CORPORA = BUILTIN_CORPORA | FOLDER_CORPORA
