"""Whether results are better than guessing: always predicting the most frequent class of the training data.

Layers cannot matter for a task that the model did not learn. Claims are judged where results are shown to be better
than guessing (see `judged_points` and `with_exclusions`), and the report says where they are not. A result that is not
significantly better may still be good if there are few trials: `GuessComparison.failed` says whether learning is
excluded.

Values without variance have no interval (see `intervals`): on a small dev set, two or three equal scores occur by
chance. They are better than guessing only if they are by `GuessComparison.margin`, and exclude learning only if they
are not above guessing, as those of a model that predicts one class.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from whichlayers.analysis.decisions import CHOICE_LEVEL, cross_fitted
from whichlayers.analysis.intervals import LEVEL, ROUNDING, Interval, t_interval
from whichlayers.analysis.power import mean_power, trials_for
from whichlayers.experiments import DISPLAYS
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import setting_label, training_settings
from whichlayers.text import beyond_note, counted, format_range, format_score, join_list, short_names
from whichlayers.trial import ALL_PRETRAINED

if TYPE_CHECKING:
    from whichlayers.analysis.claims.base import Claim

# One comparison for each: models that were finetuned (or probed) in the same way on the same data. `probe` is what
# distinguishes linear probes of the study, such as their pooling; empty for finetuned models.
SETTING = ["kind", "model", "model_fingerprint", "task", "train_size", "head", "training", "probe"]

PARTLY_TRAINED = tuple(name for name, display in DISPLAYS.items() if display.partly_trained)
# Below this fraction of the way from guessing to a perfect score (1 in all metrics), a model has learned nothing.
LEARNED = 0.1

NOT_JUDGED = "not judged on"  # before the names of the settings
NO_BETTER = "no better than guessing"
NOT_SHOWN = "not shown to be better than guessing: too few trials"


@dataclass(frozen=True)
class GuessComparison:
    """The score of the pretrained model compared with that of guessing.

    The score is that of the model finetuned with all layers pretrained. For linear probes it is that of the best layer:
    each half of the seeds chooses a layer, whose scores are taken from the other half (see `decisions.cross_fitted`).
    """

    setting: tuple  # values of the columns in SETTING
    metric: str
    guess: float
    interval: Interval  # of the mean over at least two trials
    # upper bound of the 95% interval, the highest one of all layers for linear probes; infinite without variance above
    # guessing
    ceiling: float
    where: str = "with all layers pretrained"
    layer: int | None = None  # of a linear probe: that with the highest mean
    level: float = LEVEL  # of the interval; higher for the best of several, see `compare_best`

    @property
    def model(self) -> str:
        return str(self.setting[SETTING.index("model")])

    @property
    def task(self) -> str:
        return str(self.setting[SETTING.index("task")])

    @property
    def train_size(self) -> int:
        return int(self.setting[SETTING.index("train_size")])

    @property
    def margin(self) -> float:
        """The smallest gain over guessing that counts as having learned the task."""
        return LEARNED * (1 - self.guess)

    @property
    def better(self) -> bool:
        """Whether the interval of the score is above guessing; without variance, the score by at least `margin`."""
        if self.interval.sd == 0:
            return self.interval.mean >= self.guess + self.margin
        return self.interval.low > self.guess

    @property
    def failed(self) -> bool:
        """Whether the model is shown not to have learned: a score above guessing by `margin` or more is excluded."""
        return not self.better and self.ceiling < self.guess + self.margin

    @property
    def result(self) -> str:
        """Why a comparison that is not `better` does not count."""
        return NO_BETTER if self.failed else NOT_SHOWN

    @property
    def trials_needed(self) -> int | None:
        """Trials in total to show that the score is better than guessing, or that the model has not learned.

        With 80% power if mean and sd are as estimated, for the one that needs fewer; None if that cannot be estimated.
        """
        gain, sd = self.interval.mean - self.guess, self.interval.sd
        effects = ((gain, 1 - self.level), (self.margin - gain, 1 - LEVEL))
        found = [trials_for(mean_power(effect, sd), alpha) for effect, alpha in effects if effect > 0]
        needed = min((n for n in found if n is not None), default=None)
        return None if needed is None else max(needed, self.interval.n + 1)

    @property
    def text(self) -> str:
        """Both scores: "52.1 with all layers pretrained (95% interval 49.0 to 55.2, 5 trials), guessing 52.7"."""
        i, metric = self.interval, self.metric
        ends = f"{format_range(i.low, i.high, metric)}{beyond_note(i.low, i.high, metric)}"
        interval = f"{100 * self.level:.4g}% interval {ends}, {counted(i.n, 'trial')}"
        return f"{format_score(i.mean, metric)} {self.where} ({interval}), guessing {format_score(self.guess, metric)}"


def settings_of(points: pd.DataFrame) -> pd.DataFrame:
    """The columns in SETTING of finished points."""
    return _with_probe(points)[SETTING]


def compare_with_guessing(points: pd.DataFrame) -> list[GuessComparison]:
    """Compare finetuned models and linear probes with guessing.

    Args:
        points: Finished points, as from `finished(load_points(folder))`.

    Returns:
        One comparison per setting with at least two trials and a known score of guessing. Word probes have none.
    """
    found = []
    for setting, rows in each_group(_candidates(points), SETTING):
        if setting[0] == "probe":
            one = compare_best(rows, "at the layer that is best on other seeds")
            one = one and dataclasses.replace(one, layer=_best_layer(rows))
        else:
            trials = rows.drop_duplicates("trial_id")["value"].to_numpy(float)
            interval = t_interval(trials)
            one = _comparison(rows, interval, _upper_bound(interval, rows)) if interval.n > 1 else None
        if one is not None:
            found.append(one)
    return found


def _candidates(points: pd.DataFrame) -> pd.DataFrame:
    """The points of models without surgery that were trained as a whole, and of linear probes."""
    partly = points["experiment"].isin(PARTLY_TRAINED) & (points["condition"] != ALL_PRETRAINED)
    unchanged = points["untouched"] & (points["order"].map(len) == 0) & ~partly
    return _with_probe(
        points[unchanged & points["guess"].notna() & points["kind"].isin(["finetune", "probe"])]
    )


def _with_probe(points: pd.DataFrame) -> pd.DataFrame:
    """The points with the column `probe`."""
    return points.assign(probe=points["variant"].where(points["kind"] == "probe", ""))


def compare_best(rows: pd.DataFrame, where: str) -> GuessComparison | None:
    """Compare the best of several variants with guessing, without overstating its score by the choice.

    The level of the interval is `CHOICE_LEVEL`, since the halves of the seeds are correlated if both choose the same
    variant (see `decisions.cross_fit`): where no variant is better than guessing, a 95% interval of the best of twelve
    is above it in up to 6.5% of studies instead of 2.5%, this one in up to 3.1%.

    Args:
        rows: Finished points of the variants, each of which is a condition and x.
        where: What the best variant is, in words.

    Returns:
        None if the score of guessing is not known, or with fewer than two seeds that all variants have.
    """
    table = rows.pivot_table(index="seed", columns=["condition", "x"], values="value").dropna()
    if len(table) < 2 or rows["guess"].isna().any():
        return None
    values = table.to_numpy(float)
    ceiling = max(_upper_bound(t_interval(column), rows) for column in values.T)
    level = CHOICE_LEVEL if table.shape[1] > 1 else LEVEL
    one = _comparison(rows, t_interval(cross_fitted(values)[1], level), ceiling)
    return dataclasses.replace(one, where=where, level=level)


def _upper_bound(interval: Interval, rows: pd.DataFrame) -> float:
    """The upper bound of the interval of a score; without variance infinite, unless the score is not above guessing."""
    above = interval.mean > float(rows["guess"].iloc[0]) + ROUNDING
    return math.inf if interval.sd == 0 and above else interval.high


def _comparison(rows: pd.DataFrame, interval: Interval, ceiling: float) -> GuessComparison:
    first, setting = rows.iloc[0], tuple(settings_of(rows).iloc[0])
    return GuessComparison(setting, str(first["metric"]), float(first["guess"]), interval, ceiling)


def _best_layer(rows: pd.DataFrame) -> int:
    means = rows.groupby("x")["value"].mean()
    return int(means.index.to_numpy()[means.argmax()])


def not_shown_better(points: pd.DataFrame) -> list[GuessComparison]:
    """The settings whose interval includes the score of guessing or lies below it; `failed` says which of the two
    reasons of `result` applies."""
    return [one for one in compare_with_guessing(points) if not one.better]


def by_result(excluded: Sequence[GuessComparison]) -> dict[str, list[GuessComparison]]:
    """The comparisons by `result`: first those that are no better than guessing."""
    groups = {result: [one for one in excluded if one.result == result] for result in (NO_BETTER, NOT_SHOWN)}
    return {result: group for result, group in groups.items() if group}


def describe_exclusions(excluded: Sequence[GuessComparison], points: pd.DataFrame) -> str:
    """The data of these comparisons, such as "RTE (500 examples) and linear probes on CoLA (500 examples)".

    The model is named if the study has several, and so are the head and the settings of training where models that
    were finetuned on the same data differ in them, and those of linear probes.

    Args:
        excluded: The comparisons.
        points: The finished points that they are from, of the whole study.
    """
    models, tasks = short_names(points["model"]), short_names(points["task"])
    details = _differing_settings(points)
    parts = []
    for one in excluded:
        examples = ", ".join([f"{one.train_size:,} examples", *details[one.setting]])
        model = models[one.model] if len(models) > 1 else ""
        probes = "" if one.layer is None else f"linear probes of {model}" if model else "linear probes"
        parts.append(f"{' on '.join(filter(None, (probes or model, tasks[one.task])))} ({examples})")
    return join_list(dict.fromkeys(parts))


def _differing_settings(points: pd.DataFrame) -> dict[tuple, list[str]]:
    """What each setting of the points differs in from others of the same kind, model and data, as labels."""
    settings = _candidates(points).drop_duplicates(SETTING)
    values = pd.concat([settings[["head", "probe"]], training_settings(settings)], axis=1)
    groups = [settings[name] for name in SETTING[:5]]
    differs = values.apply(lambda column: column.groupby(groups).transform("nunique", dropna=False) > 1)
    return {
        tuple(setting): [
            str(value) if name == "probe" else setting_label(str(name), value)
            for name, value in row[chosen].items()
        ]
        for setting, (_, row), (_, chosen) in zip(
            settings[SETTING].to_numpy(), values.iterrows(), differs.iterrows(), strict=True
        )
    }


def judged_points(points: pd.DataFrame) -> tuple[pd.DataFrame, list[GuessComparison]]:
    """The points that claims are judged on, and the settings that are left out: those not shown to be better than
    guessing."""
    excluded = not_shown_better(points)
    if not excluded:
        return points, []
    settings = pd.MultiIndex.from_frame(settings_of(points))
    return points[~settings.isin([one.setting for one in excluded])], excluded


def with_exclusions(
    judged: Sequence[Claim],
    everywhere: Sequence[Claim],
    excluded: Sequence[GuessComparison],
    points: pd.DataFrame,
) -> list[Claim]:
    """Add to the details of claims on which data they were not judged.

    Args:
        judged: The claims, evaluated on the points of `judged_points`.
        everywhere: The same claims, evaluated on all points; a claim that is the same on both is not changed.
        excluded: The settings that were left out.
        points: The finished points of the whole study.
    """
    reason = "; ".join(
        f"{NOT_JUDGED} {describe_exclusions(group, points)}: {result}"
        for result, group in by_result(excluded).items()
    )
    found = []
    for claim, full in zip(judged, everywhere, strict=True):
        if repr(claim) != repr(full):  # NaN is not equal to itself, but has one representation
            claim = dataclasses.replace(
                claim, details=f"{claim.details}; {reason}" if claim.tests else reason
            )
        found.append(claim)
    return found
