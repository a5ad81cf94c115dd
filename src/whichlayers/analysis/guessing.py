"""Whether results are better than guessing: always predicting the most frequent class of the training data.

Layers cannot matter for a task that the model did not learn. Claims are not judged on such data (see `judged_points`
and `with_exclusions`), and the report says so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from whichlayers.analysis.intervals import Interval, t_interval
from whichlayers.results.frame_utils import each_group
from whichlayers.text import counted, format_range, format_score, join_list
from whichlayers.trial import ALL_PRETRAINED

if TYPE_CHECKING:
    from whichlayers.analysis.claims.base import Claim

# One comparison for each: models that were finetuned (or probed) in the same way on the same data.
SETTING = ["kind", "model", "model_fingerprint", "task", "train_size", "head", "training"]

# Experiments whose points, except for the baseline, train a part of the parameters or layers at different rates.
PARTLY_TRAINED = ("freeze", "lr_decay", "adapt", "adapt_layers")


@dataclass(frozen=True)
class GuessComparison:
    """The score of the pretrained model compared with that of guessing.

    The score is that of the model finetuned with all layers pretrained; for linear probes that of the layer with the
    highest mean.
    """

    setting: tuple  # values of the columns in SETTING
    metric: str
    guess: float
    interval: Interval  # of the mean over at least two trials
    layer: int | None = None  # of a linear probe

    @property
    def task(self) -> str:
        return str(self.setting[SETTING.index("task")])

    @property
    def train_size(self) -> int:
        return int(self.setting[SETTING.index("train_size")])

    @property
    def better(self) -> bool:
        """Whether the 95% interval of the score is above guessing."""
        return self.interval.low > self.guess

    @property
    def text(self) -> str:
        """Both scores: "52.1 with all layers pretrained (95% interval 49.0 to 55.2, 5 trials), guessing 52.7"."""
        i, metric = self.interval, self.metric
        where = "with all layers pretrained" if self.layer is None else f"at the best layer, {self.layer}"
        interval = f"95% interval {format_range(i.low, i.high, metric)}, {counted(i.n, 'trial')}"
        return f"{format_score(i.mean, metric)} {where} ({interval}), guessing {format_score(self.guess, metric)}"


def compare_with_guessing(points: pd.DataFrame) -> list[GuessComparison]:
    """Compare finetuned models and linear probes with guessing.

    Args:
        points: Finished points, as from `finished(load_points(folder))`.

    Returns:
        One comparison per setting with at least two trials and a known score of guessing. Word probes have none.
    """
    partly = points["experiment"].isin(PARTLY_TRAINED) & (points["condition"] != ALL_PRETRAINED)
    unchanged = points["untouched"] & (points["order"].map(len) == 0) & ~partly
    candidates = points[unchanged & points["guess"].notna() & points["kind"].isin(["finetune", "probe"])]
    found = []
    for setting, rows in each_group(candidates, SETTING):
        layers = {
            layer: t_interval(trials.drop_duplicates("trial_id")["value"].to_numpy())
            for layer, trials in rows.groupby(rows["x"].where(rows["kind"] == "probe", -1.0))
        }
        layer, interval = max(layers.items(), key=lambda item: item[1].mean)
        if math.isfinite(interval.low):
            at = int(layer) if setting[0] == "probe" else None
            metric, guess = str(rows["metric"].iloc[0]), float(rows["guess"].iloc[0])
            found.append(GuessComparison(tuple(setting), metric, guess, interval, at))
    return found


def no_better_than_guessing(points: pd.DataFrame) -> list[GuessComparison]:
    """The settings whose 95% interval includes the score of guessing or lies below it."""
    return [one for one in compare_with_guessing(points) if not one.better]


def describe_exclusions(excluded: Sequence[GuessComparison], names: Mapping[str, str] | None = None) -> str:
    """The data of these comparisons, such as "RTE (500 examples) and linear probes on CoLA (500 examples)".

    Args:
        excluded: The comparisons.
        names: Names of the tasks to display.
    """
    parts = []
    for one in excluded:
        probes = "" if one.layer is None else "linear probes on "
        parts.append(f"{probes}{(names or {}).get(one.task, one.task)} ({one.train_size:,} examples)")
    return join_list(dict.fromkeys(parts))


def judged_points(points: pd.DataFrame) -> tuple[pd.DataFrame, list[GuessComparison]]:
    """The points that claims are judged on, and the settings that are left out: those no better than guessing."""
    excluded = no_better_than_guessing(points)
    if not excluded:
        return points, []
    settings = pd.MultiIndex.from_frame(points[SETTING])
    return points[~settings.isin([one.setting for one in excluded])], excluded


def with_exclusions(
    judged: Sequence[Claim], everywhere: Sequence[Claim], excluded: Sequence[GuessComparison]
) -> list[Claim]:
    """Add to the details of claims on which data they were not judged.

    Args:
        judged: The claims, evaluated on the points of `judged_points`.
        everywhere: The same claims, evaluated on all points; a claim that is the same on both is not changed.
        excluded: The settings that were left out.
    """
    reason = f"not judged on {describe_exclusions(excluded)}: no better than guessing"
    found = []
    for claim, full in zip(judged, everywhere, strict=True):
        if repr(claim) != repr(full):  # NaN is not equal to itself, but has one representation
            claim = dataclasses.replace(
                claim, details=f"{claim.details}; {reason}" if claim.tests else reason
            )
        found.append(claim)
    return found
