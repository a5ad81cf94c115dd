"""Display names of metrics, experiments, conditions and axes, for figures, tables and text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from whichlayers.catalog import METRICS
from whichlayers.text import DIFFERENCE, TIMES_100, in_points

MEASURES = {  # what is measured besides the metrics of tasks
    "distance": "weight change",
    "dev_loss": "evaluation loss",
    "spectral norm, min-max scaled": "weight change, scaled",
    "spread": "fraction of the top neurons",
    "neurons": "fraction of all neurons",
    "compression": "compression",
}
EXPERIMENTS = {
    "incremental": "Incremental re-initialization",
    "localized": "Localized re-initialization",
    "single_layer": "Single layer re-initialized",
    "permutation": "Layer permutations",
    "epochs": "Longer finetuning",
    "prune": "Layer pruning",
    "probing": "Linear probes of the frozen model",
    "word_probing": "Word-level probing by layer",
    "neurons": "Top, bottom and random neurons",
    "neuron_spread": "Distribution of the top neurons",
    "smallest_set": "Smallest set of neurons",
    "selectivity": "Selectivity (accuracy minus control task)",
    "description_length": "Description length",
}
X_AXES = {
    "incremental": "pretrained layers kept (k)",
    "localized": "first layer of the block",
    "single_layer": "layer re-initialized",
    "permutation": "training examples",
    "epochs": "pretrained layers kept (k)",
    "prune": "layers dropped",
    "probing": "layer probed (0: embeddings)",
    "word_probing": "layer probed (0: embeddings)",
    "neurons": "finetuned on",
    "neuron_spread": "layer (0: embeddings)",
    "smallest_set": "finetuned on",
    "selectivity": "finetuned on",
    "description_length": "finetuned on",
}
# Names of x as it is stored, for tables and comparisons of two studies.
X_COLUMNS = X_AXES | {
    "permutation": "permutation no.",
    "neurons": "set (% of neurons)",
    "selectivity": "set (% of neurons)",
    "description_length": "set (% of neurons)",
    "smallest_set": "delta (points)",
}
BY_LAYER = ("word_probing", "neuron_spread")
BY_MODEL = ("neurons", "smallest_set", "selectivity", "description_length")
WORD_EXPERIMENTS = (*BY_LAYER, *BY_MODEL)  # word-level probing: the task is a corpus
CATEGORICAL_X = ("permutation", *BY_MODEL)  # x is a category: points are not joined by lines
CONDITIONS = {
    ("single_layer", ""): "single layer re-initialized",
    ("epochs", ""): "after the last epoch",
    ("prune", "top"): "top layers dropped",
    ("prune", "bottom"): "bottom layers dropped",
    ("probing", ""): "linear probe",
}
ORDER = list(EXPERIMENTS)


def metric_name(metric: str) -> str:
    """Display name of a metric, e.g. "Matthews correlation" for "mcc"."""
    whole = metric.removeprefix(DIFFERENCE)
    name = METRICS[whole].display_name if whole in METRICS else MEASURES.get(whole, whole)
    return metric.removesuffix(whole) + name


def axis_name(metric: str) -> str:
    """Name of a metric with its scale, as axis label: "accuracy × 100"."""
    return f"{metric_name(metric)} {TIMES_100}" if in_points(metric) else metric_name(metric)


def effect_unit(metric: str) -> str:
    """Unit of a difference in a metric: "points of accuracy"."""
    return f"points of {metric_name(metric)}" if in_points(metric) else metric_name(metric)


def experiment_name(experiment: str) -> str:
    """Title of an experiment."""
    return EXPERIMENTS.get(experiment, experiment.replace("_", " ").capitalize())


def condition_name(experiment: str, condition: str) -> str:
    """Display name of a condition as stored in the results."""
    plain = condition.replace("reinitialized", "re-initialized")
    return CONDITIONS.get((experiment, condition), plain or experiment_name(experiment).lower())


def x_phrase(experiment: str, x: float) -> str:
    """A position on the x axis in a sentence, e.g. "layer 3" or "1 layer dropped"."""
    pattern = {
        "localized": "the block that starts at layer {:g}",
        "single_layer": "layer {:g}",
        "prune": "{:g} layer dropped" if x == 1 else "{:g} layers dropped",
        "probing": "layer {:g}",
        "word_probing": "layer {:g}",
        "neuron_spread": "layer {:g}",
    }
    return pattern.get(experiment, "x = {:g}").format(x)


def x_axis_label(experiment: str) -> str:
    """Label of the x axis in the figure of an experiment."""
    return X_AXES.get(experiment, "x")


def x_column_label(experiment: str) -> str:
    """Label of x in tables of an experiment."""
    return X_COLUMNS.get(experiment, "x")


def x_tick_label(experiment: str, x: float) -> str:
    """A value of x as a column head or tick label; "all" for 100% of the neurons."""
    return "all" if x == 100 and X_COLUMNS.get(experiment, "").startswith("set (") else f"{x:g}"


def task_noun(experiment: str) -> str:
    """What the task column holds: "corpus" in word-level probing, else "task"."""
    return "corpus" if experiment in WORD_EXPERIMENTS else "task"


def sort_experiments(experiments: Iterable[str]) -> list[str]:
    """Distinct experiments: built-in ones in the order of `EXPERIMENTS`, then others by name."""
    return sorted(set(experiments), key=lambda e: (ORDER.index(e) if e in ORDER else len(ORDER), e))


def size_name(size: int) -> str:
    """A number of training examples, e.g. "1,000"; a dash for 0 (not finetuned)."""
    return f"{int(size):,}" if size else "–"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Map each name to a short form without "package:", "builtin:" or directories, if that stays unique."""
    full = sorted(set(names))
    short = {name: _shorten(name) for name in full}
    short_forms = list(short.values())
    return {name: text if short_forms.count(text) == 1 else name for name, text in short.items()}


def _shorten(name: str) -> str:
    for prefix in ("package:", "builtin:"):
        name = name.removeprefix(prefix)
    return PurePath(name).name if name.startswith(("/", ".", "~")) else name
