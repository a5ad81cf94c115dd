"""Claims T6, T7, T9 and T10 of Tamkin et al. 2020: how re-initialized layers are trained, and for how long.

Each claim function takes finished points and the thresholds, and returns the claim with its verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pandas as pd

from whichlayers.analysis.claims.base import (
    Claim,
    ClaimTest,
    ClaimThresholds,
    evaluate_claim,
    increase_test,
    metric_margin,
    no_increase_test,
    not_tested,
    undecided_test,
    with_subject,
)
from whichlayers.analysis.intervals import two_sided
from whichlayers.analysis.variance_ratio import variance_ratio
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import REINIT_COLUMNS, training_settings
from whichlayers.text import short_names

T6 = "A higher learning rate for re-initialized layers does not help"
T7 = "Keeping the layer norms of re-initialized layers does not help"
T9 = "Training for more than three epochs helps with 500 examples, and not with 5,000"
T10 = "A higher learning rate for re-initialized layers increases the variance between trials"
SAME_SETTINGS = ["experiment", "model", "task", "train_size", "head", "training", "recipe"]
NO_HELP = "does not help: the mean over k gains less than the margin, one-sided"
BASE_EPOCHS = 3
FEW_EXAMPLES, MANY_EXAMPLES = 500, 5000
SD_RATIO_MARGIN = math.log(1.1)  # deviations that differ by less than 10% do not matter


def t6(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Incremental curves with a raised learning rate of re-initialized layers against those without."""
    column, fixed = "reinit_lr_factor", "keep_layer_norm"
    tests = _setting_tests(points, column, 1.0, fixed, _describe_lr, thresholds)
    if not tests:
        return not_tested("T6", T6, 'run kind = "incremental" with reinit_lr_factor = [1.0, 5.0]')
    return evaluate_claim("T6", T6, tests, thresholds, NO_HELP)


def t7(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Incremental curves with the layer norms of re-initialized layers kept against those with them reset."""
    column, fixed = "keep_layer_norm", "reinit_lr_factor"
    tests = _setting_tests(points, column, False, fixed, lambda _: "layer norms kept", thresholds)
    if not tests:
        return not_tested("T7", T7, 'run kind = "incremental" with keep_layer_norm = [false, true]')
    return evaluate_claim("T7", T7, tests, thresholds, NO_HELP)


def t9(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Scores after training for more than three epochs minus those of separate trials of three epochs.

    Each trial decays its learning rate to zero. The third epoch of a longer trial would not do: its learning rate is
    still high, so that it scores less than a trial of three epochs.
    """
    rows = points[points["experiment"].isin(["epochs", "incremental"])]
    rows = rows.drop_duplicates(["trial_id", *REINIT_COLUMNS])
    settings = training_settings(rows).drop(columns=["epochs", "evaluate"], errors="ignore")
    same = rows.assign(settings=[repr(sorted(row.items())) for row in settings.to_dict("records")])
    tests: list[ClaimTest] = []
    for _, group in each_group(same, ["model", "task", "train_size", "head", *REINIT_COLUMNS, "settings"]):
        tests += with_subject(_longer_training_test(group, _setting_label(group, rows), thresholds), group)
    if not tests:
        how = 'run tamkin2020/longer-training, or kind = "epochs" and kind = "incremental" with epochs = 3'
        return not_tested("T9", T9, how)
    remark = "not: the mean over k gains less than the margin, one-sided"
    return evaluate_claim("T9", T9, tests, thresholds, remark)


def _longer_training_test(group: pd.DataFrame, name: str, thresholds: ClaimThresholds) -> list[ClaimTest]:
    """One test if the size is one that the paper has and there are trials of three and of more epochs. The sample are
    each seed's differences, averaged over the k of both lengths."""
    size, longest = int(group["train_size"].iloc[0]), int(group["epochs"].max())
    if FEW_EXAMPLES < size < MANY_EXAMPLES or longest <= BASE_EPOCHS:
        return []
    trials = group.drop_duplicates(["epochs", "seed", "x"])  # both experiments may have run the same training
    short, long = (trials[trials["epochs"] == epochs] for epochs in (BASE_EPOCHS, longest))
    differences = _paired_tables(long, short)
    if differences is None:
        return []
    gains = (differences[0] - differences[1]).mean(axis=1).to_numpy()
    about = f"{name}: {longest} against {BASE_EPOCHS} epochs"
    unit, margin = str(group["metric"].iloc[0]), metric_margin(short, thresholds)
    if size <= FEW_EXAMPLES:
        return [increase_test(gains, about, unit, margin)]
    return [no_increase_test(gains, about, unit, margin, thresholds.alpha)]


def t10(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Spread of the trials with a raised learning rate of re-initialized layers against those without."""
    tests: list[ClaimTest] = []
    for about, unit, changed, base, rows in _setting_pairs(
        points, "reinit_lr_factor", 1.0, "keep_layer_norm", _describe_lr
    ):
        tests += with_subject([_spread_test(f"{about}, {unit}", changed, base)], rows)
    if not tests:
        return not_tested(
            "T10", T10, 'run kind = "incremental" with reinit_lr_factor = [1.0, 5.0], 3 trials or more'
        )
    remark = "log of the ratio of the mean absolute deviations; less than 10% (0.095) does not matter"
    return evaluate_claim("T10", T10, tests, thresholds, remark)


def _spread_test(about: str, changed: pd.DataFrame, base: pd.DataFrame) -> ClaimTest:
    """For: the deviations of the trials from their median are larger in `changed` (two-sided p of a paired
    Brown-Forsythe test). Against: they are larger by less than 10%."""
    found = variance_ratio(changed.to_numpy(), base.to_numpy())
    if found is None:
        return undecided_test(about, "log ratio", len(base), "fewer than 3 trials, or no variance")
    return ClaimTest(
        *(about, "log ratio", found.log_ratio, found.low, found.high),
        p=two_sided(found.p_above()),
        p_against=found.p_below(SD_RATIO_MARGIN),
        n=found.n,
        margin=SD_RATIO_MARGIN,
        power=found.power(SD_RATIO_MARGIN),
    )


def _describe_lr(factor: object) -> str:
    return f"{factor:g}× lr"


def _setting_tests(
    points: pd.DataFrame,
    column: str,
    default: object,
    fixed: str,
    describe: Callable[[object], str],
    thresholds: ClaimThresholds,
) -> list[ClaimTest]:
    """One test per pair of curves that differ in `column`: the mean difference over k is below the margin."""
    tests: list[ClaimTest] = []
    for about, unit, changed, base, rows in _setting_pairs(points, column, default, fixed, describe):
        gains = (changed - base).mean(axis=1).to_numpy()
        test = no_increase_test(gains, about, unit, metric_margin(rows, thresholds), thresholds.alpha)
        tests += with_subject([test], rows)
    return tests


def _setting_pairs(
    points: pd.DataFrame, column: str, default: object, fixed: str, describe: Callable[[object], str]
) -> Iterator[tuple[str, str, pd.DataFrame, pd.DataFrame, pd.DataFrame]]:
    """Incremental curves with each value of `column` other than `default`, and those with `default`.

    The setting `fixed` is equal on both sides.

    Yields:
        What is compared, the metric, both curves (seeds, k) with the seeds and k that both have, and the rows with
        `default`.
    """
    rows = points[(points["experiment"] == "incremental") & ~points["untouched"]]
    for _, group in each_group(rows, [*SAME_SETTINGS, fixed]):
        default_rows = group[group[column] == default]
        for (other,), changed in each_group(group[group[column] != default], [column]):
            tables = _paired_tables(changed, default_rows)
            if tables is not None and not pd.isna(other):
                about = f"{_setting_label(group, rows)}: {describe(other)} against usual"
                yield about, str(group["metric"].iloc[0]), *tables, default_rows


def _paired_tables(a: pd.DataFrame, b: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Both curves as (seeds, k), with the k that both have and the seeds that have all of these; None if no cell is
    in both."""
    values = [rows.set_index(["seed", "x"])["value"].rename(str(i)) for i, rows in enumerate((a, b))]
    pairs = pd.concat(values, axis=1, join="inner").dropna()
    if pairs.empty:
        return None
    complete = pairs.unstack("x").dropna()
    return pd.DataFrame(complete["0"]), pd.DataFrame(complete["1"])


def _setting_label(rows: pd.DataFrame, all_rows: pd.DataFrame) -> str:
    """As `group_label`, with the recipe in place of the variant."""
    first = rows.iloc[0]
    models = short_names(all_rows["model"])
    parts = [str(first["task"])] + ([models[first["model"]]] if len(models) > 1 else [])
    if all_rows["train_size"].nunique() > 1:
        parts.append(f"{int(first['train_size']):,} examples")
    return ", ".join(parts + ([str(first["recipe"])] if all_rows["recipe"].nunique() > 1 else []))
