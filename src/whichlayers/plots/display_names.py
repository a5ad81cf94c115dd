"""How things are called in figures, tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

METRICS = {
    "accuracy": "accuracy",
    "f1": "F1",
    "macro_f1": "macro F1",
    "mcc": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "distance": "distance moved",
    "spectral norm, min-max scaled": "distance moved, scaled",
    "spread": "share of the top neurons",
    "neurons": "share of all neurons",
    "compression": "compression",
}
EXPERIMENTS = {
    "incremental": "Incremental re-initialisation",
    "localized": "Localized re-initialisation",
    "single_layer": "One layer re-initialised",
    "permutation": "Layer permutations",
    "epochs": "Epoch by epoch",
    "prune": "Dropped layers",
    "probing": "Probes of the frozen model",
    "word_probing": "What layers know of words",
    "neurons": "Top, bottom and random neurons",
    "neuron_spread": "Where the top neurons lie",
    "smallest_set": "Smallest set of neurons",
    "selectivity": "Selectivity: against a control task",
    "description_length": "Description length",
}
X_AXES = {
    "incremental": "pretrained layers kept (k)",
    "localized": "first layer of the block",
    "single_layer": "layer re-initialised",
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
X_NAMES = X_AXES | {  # of x as it is stored: in tables, and where two studies are compared
    "permutation": "number of the order",
    "neurons": "set, % of neurons",
    "selectivity": "set, % of neurons",
    "description_length": "set, % of neurons",
    "smallest_set": "delta, points",
}
BY_LAYER = ("word_probing", "neuron_spread")
BY_MODEL = ("neurons", "smallest_set", "selectivity", "description_length")
LINGUISTIC = (*BY_LAYER, *BY_MODEL)  # whose task is a corpus
UNJOINED = ("permutation", *BY_MODEL)  # whose x is a name, with nothing between two of them
CONDITIONS = {
    ("single_layer", ""): "one layer re-initialised",
    ("epochs", ""): "after the last epoch",
    ("prune", "top"): "top layers dropped",
    ("prune", "bottom"): "bottom layers dropped",
    ("probing", ""): "linear probe",
}
ORDER = list(EXPERIMENTS)


def metric_name(metric: str) -> str:
    return METRICS.get(metric, metric)


def experiment_name(experiment: str) -> str:
    return EXPERIMENTS.get(experiment, experiment.replace("_", " ").capitalize())


def condition_name(experiment: str, condition: str) -> str:
    plain = condition.replace("reinitialized", "re-initialised")
    return CONDITIONS.get((experiment, condition), plain or experiment_name(experiment).lower())


def place_name(experiment: str, x: float) -> str:
    """Where on the x axis, in a sentence: 'at ...'."""
    pattern = {
        "localized": "the block that starts at layer {:g}",
        "single_layer": "layer {:g}",
        "prune": "{:g} layers dropped",
        "probing": "layer {:g}",
        "word_probing": "layer {:g}",
        "neuron_spread": "layer {:g}",
    }
    return pattern.get(experiment, "x = {:g}").format(x)


def x_axis(experiment: str) -> str:
    return X_AXES.get(experiment, "x")


def x_name(experiment: str) -> str:
    return X_NAMES.get(experiment, "x")


def x_value(experiment: str, x: float) -> str:
    """As a column's head or a tick. Of sets of neurons, 100% are all."""
    return "all" if x == 100 and X_NAMES.get(experiment, "").startswith("set") else f"{x:g}"


def task_word(experiment: str) -> str:
    return "corpus" if experiment in LINGUISTIC else "task"


def in_order(experiments: Iterable[str]) -> list[str]:
    """The experiments we know first, in the order of the paper; others after them by name."""
    return sorted(set(experiments), key=lambda e: (ORDER.index(e) if e in ORDER else len(ORDER), e))


def size_name(size: int) -> str:
    """1,000; a dash where nothing was trained on."""
    return f"{int(size):,}" if size else "–"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Names without package:, builtin: or their folders, unless two would then be called the same."""
    full = sorted(set(names))
    short = {name: _shorten(name) for name in full}
    taken = list(short.values())
    return {name: text if taken.count(text) == 1 else name for name, text in short.items()}


def _shorten(name: str) -> str:
    for prefix in ("package:", "builtin:"):
        name = name.removeprefix(prefix)
    return PurePath(name).name if name.startswith(("/", ".", "~")) else name


def number(value: float, signed: bool = False) -> str:
    """Three decimals; a minus sign that is one; no sign before what rounds to nothing."""
    text = f"{value:+.3f}" if signed else f"{value:.3f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def listing(words: Iterable[str]) -> str:
    """a / a and b / a, b and c"""
    some = list(words)
    return some[0] if len(some) == 1 else f"{', '.join(some[:-1])} and {some[-1]}" if some else ""
