"""How figures, tables and text present the results of an experiment. Each experiment's file declares its displays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from whichlayers.trial import ALL_PRETRAINED, NONE_PRETRAINED

# Figures that an experiment can be drawn as; `PLOTS` in plots/figures.py has a function for each.
Plot = Literal["curves", "conditions", "permutations", "by_layer", "by_model"]

# end of the label of an axis of layers; left out of figures without layer 0
EMBEDDINGS_NOTE = "(0: embeddings)"
PRETRAINED_BASELINES = {ALL_PRETRAINED: ALL_PRETRAINED, NONE_PRETRAINED: NONE_PRETRAINED}
# Display names of the same baseline in experiments that freeze parameters or change learning rates by layer.
ALL_TRAINED = {ALL_PRETRAINED: "all parameters trained"}
SAME_LR = {ALL_PRETRAINED: "one learning rate for all layers"}


@dataclass(frozen=True)
class Display:
    """How the points stored under one experiment name are presented.

    Args:
        name: Name of the experiment in the results. Most kinds of experiment store their points under their own name.
        title: Title of the experiment.
        x_label: Label of the x axis.
        description: What is done to the models, as sentences; the caption starts with them.
        plot: Main figure. curves: a curve per training size and variant; conditions: a curve per condition, with the
            baselines as dashed lines; permutations: a strip of points per training size; by_layer (word-level
            probing): a curve per finetuned model; by_model (word-level probing): a marker per set of neurons.
        x_column: Name of x as it is stored, for tables; `x_label` if empty.
        x_names: Display names of values of x that are not shown as numbers.
        position: A value of x in a sentence, such as "layer 3".
        conditions: Display names of conditions that are not shown as they are stored.
        shared_y: Whether all panels have the same y range, starting at zero.
        learning_curves: Whether scores by epoch are drawn for none, half and all of the layers pretrained; x is then
            the number of pretrained layers kept.
        sets: What distinguishes the markers of a by_model figure.
        baselines: Display names of the baselines.
        layer_axis: Whether x counts layers, so that the axis of a conditions figure has a tick for each.
        costs: Whether a figure shows the metric against the time and the memory of each setting.
        relative_depth: Whether x counts layers such that, in models of different depth, points at the same share of the
            layers correspond to each other.
        partly_trained: Whether all points but the baseline train a part of the parameters, or layers at different
            rates, so that they are no measure of what the pretrained model can learn.
    """

    name: str
    title: str
    x_label: str
    description: str
    plot: Plot = "conditions"
    x_column: str = ""
    x_names: Mapping[float, str] = field(default_factory=dict)
    position: Callable[[float], str] = "x = {:g}".format
    conditions: Mapping[str, str] = field(default_factory=dict)
    shared_y: bool = False
    learning_curves: bool = False
    sets: Literal["neurons", "ranking"] = "neurons"
    baselines: Mapping[str, str] = field(default_factory=lambda: PRETRAINED_BASELINES)
    costs: bool = False
    layer_axis: bool = True
    relative_depth: bool = False
    partly_trained: bool = False

    @property
    def word_level(self) -> bool:
        """Whether words of a corpus are probed; the task column then holds the corpus."""
        return self.plot in ("by_layer", "by_model")

    @property
    def task_noun(self) -> str:
        """What the task column holds: "corpus" in word-level probing, else "task"."""
        return "corpus" if self.word_level else "task"

    @property
    def categorical_x(self) -> bool:
        """Whether x is a category, so that points are not joined by lines."""
        return self.plot in ("permutations", "by_model")

    @property
    def x_header(self) -> str:
        """Label of x in tables."""
        return self.x_column or self.x_label

    def x_name(self, x: float) -> str:
        """A value of x as a column head or tick label."""
        return self.x_names.get(x, f"{x:g}")

    def condition_name(self, condition: str) -> str:
        """Display name of a condition or baseline as stored in the results."""
        if condition in self.baselines:
            return self.baselines[condition]
        plain = condition.replace("reinitialized", "re-initialized")
        name, _, settings = condition.partition(", ")  # such as "rank 8, lr 0.001"
        if settings and name in self.conditions:
            plain = f"{self.conditions[name]}, {settings}"
        return self.conditions.get(condition, plain or self.title.lower())

    def baseline_header(self, condition: str) -> str:
        """A baseline as a column head: "all" and "none" (of the layers pretrained), or its display name."""
        name = self.baselines.get(condition, condition)
        return condition.split()[0] if name == condition else name


def generic_display(experiment: str) -> Display:
    """Display of an experiment that this version does not know: its name as title, one curve per condition."""
    return Display(experiment, experiment.replace("_", " ").capitalize(), "x", "")
