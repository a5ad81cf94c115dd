"""Comparison of two studies: differences are paired by seed, and trials without a partner are counted."""

from __future__ import annotations

import dataclasses
import sqlite3

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from synthetic_results import incremental, lifelike, localized, trial, write_results

from whichlayers.analysis.compare_studies import compare_studies
from whichlayers.errors import WhichlayersError
from whichlayers.results.frames import finished, load_points
from whichlayers.trial import Point, Training

BASE = lifelike(6)


def with_recipe(points, recipe):
    return [
        dataclasses.replace(
            p,
            trial=dataclasses.replace(
                p.trial, surgery=dataclasses.replace(p.trial.surgery, recipe=recipe).canonical()
            ),
        )
        for p in points
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("compared")
    first = incremental(("SST-2", "CoLA"), (500, 5000), 4) + localized()
    second = with_recipe(incremental(("SST-2", "CoLA", "QNLI"), (500, 5000), 6), "as_released")
    a = write_results(path / "a", first, BASE, name="first")
    return a, write_results(path / "b", second, BASE, name="second")


def test_differences_are_those_of_scipys_paired_t_test(folders):
    found = compare_studies(*folders)
    a, b = (finished(load_points(folder)) for folder in folders)

    def values(frame, k):
        rows = frame[(frame.experiment == "incremental") & (frame.task == "CoLA") & (frame.train_size == 500)]
        return rows[(rows.x == k) & (rows.seed < 4)].sort_values("seed")["value"].to_numpy()

    points = found.points.query("task == 'CoLA' and train_size == 500").set_index("x")
    for k in range(6):
        test = stats.ttest_rel(values(b, k), values(a, k))
        interval = test.confidence_interval(0.95)
        row = points.loc[k]
        assert (row["mean"], row.low, row.high) == pytest.approx(
            (np.mean(values(b, k) - values(a, k)), interval.low, interval.high)
        )
        assert (row.p, row.n) == (pytest.approx(test.pvalue), 4)
    known = points[points["p"].notna()]  # at the last k all seeds have the same difference
    assert list(known["p_adjusted"]) == pytest.approx(list(multipletests(known["p"], method="holm")[1]))
    curve = found.curves.query("task == 'CoLA' and train_size == 500").iloc[0]
    by_seed = np.mean([values(b, k) - values(a, k) for k in range(7)], axis=0)
    assert (curve["mean"], curve.p) == pytest.approx((by_seed.mean(), stats.ttest_1samp(by_seed, 0).pvalue))
    assert list(found.curves["task"]) == ["SST-2", "SST-2", "CoLA", "CoLA"]  # in the order of the study


def test_unpaired_trials_are_counted_and_differing_settings_listed(folders):
    found = compare_studies(*folders)
    unpaired = dict(found.unpaired)
    assert (
        sum(unpaired.values()) == 7 * 2 * 6 + 7 * 2 * 2 * 2 + (2 + 2 * 4) * 3
    )  # QNLI, two more seeds, localized
    assert any("localized, in first" in why for why in unpaired)
    assert ("recipe", "as_described", "as_released") in found.differs
    assert len(found.pairs) == 7 * 4 * 4


def test_pairs_agree_in_the_seeds_of_all_components(tmp_path):
    def on_one_subset(points):
        return [
            dataclasses.replace(p, trial=dataclasses.replace(p.trial, seeds=(("subset", 0),))) for p in points
        ]

    points = incremental(trials=4)
    plain = write_results(tmp_path / "plain", points, BASE)
    fixed = write_results(tmp_path / "fixed", on_one_subset(points), BASE)
    again = write_results(tmp_path / "again", on_one_subset(points), BASE)
    assert set(compare_studies(plain, fixed).pairs["seed"]) == {0}  # the trial on the same subset in both
    assert set(compare_studies(fixed, again).pairs["seed"]) == {0, 1, 2, 3}


def test_recipes_that_both_studies_have_are_paired(tmp_path):
    both = incremental(recipes=("as_described", "bert_init"))
    a = write_results(tmp_path / "a", both, BASE)
    b = write_results(
        tmp_path / "b", both, lambda p: BASE(p) + (0.1 if p.trial.surgery.recipe == "bert_init" else 0)
    )
    found = compare_studies(a, b)
    means = found.curves.set_index("setting")["mean"]
    assert means["bert_init"] == pytest.approx(0.1 * 6 / 7)
    assert means["as_described"] == 0
    assert found.unpaired == []
    assert (found.a.name, found.b.name) == ("a", "b")


def test_training_settings_that_differ_are_listed(tmp_path):
    def trained(lr):
        points = incremental(sizes=(500, 5000))
        epochs = {500: 5, 5000: 3}
        return [
            dataclasses.replace(
                p,
                trial=dataclasses.replace(
                    p.trial, training=Training(lr=lr, epochs=epochs[p.trial.train_size])
                ),
            )
            for p in points
        ]

    found = compare_studies(*(write_results(tmp_path / str(lr), trained(lr), BASE) for lr in (1e-5, 5e-5)))
    assert ("lr", "1e-05", "5e-05") in found.differs
    assert len(found.pairs) == 2 * 7 * 3


def test_models_of_different_depth_are_paired_at_the_same_share_of_their_layers(tmp_path):
    """8 and 12 layers have every second and third layer in common: 0, 25, 50, 75 and 100%."""
    a = write_results(
        tmp_path / "a",
        incremental(models=("small",), depth=8),
        lambda p: p.x / 8 + p.trial.seed / 100,
        depth=8,
    )
    b = write_results(
        tmp_path / "b", incremental(models=("large",), depth=12), lambda p: p.x / 12 + 0.01, depth=12
    )
    found = compare_studies(a, b)
    assert list(found.points["x"]) == [0, 25, 50, 75, 100]
    assert found.points["mean_a"].tolist() == pytest.approx([0.01, 0.26, 0.51, 0.76, 1.01])
    assert found.points["mean"].abs().max() < 1e-12
    assert found.curves["points"].tolist() == [5]
    assert ("model", "small", "large") in found.differs
    assert ("layers", "8", "12") in found.differs
    assert found.lowest_depth == 8
    assert sorted(count for _, count in found.unpaired) == [4 * 3, 8 * 3]
    assert all(
        "the same share of the layers, task, training size and seed" in reason for reason, _ in found.unpaired
    )


def test_points_at_single_layers_of_models_of_different_depth_are_not_paired(tmp_path):
    a = write_results(tmp_path / "a", localized(), BASE)
    b = write_results(tmp_path / "b", localized(depth=12), lifelike(12), depth=12)
    found = compare_studies(a, b)
    assert set(found.points["condition"]) == {"all pretrained", "none pretrained"}
    [(reason, _)] = found.unpaired
    assert reason == "the models differ in depth: the points of localized do not correspond"


def test_tasks_whose_data_changed_are_not_paired(tmp_path):
    a = write_results(tmp_path / "a", incremental(("SST-2", "CoLA")), BASE)
    other = [
        Point(p.experiment, p.condition, p.x, dataclasses.replace(p.trial, task_fingerprint="other"))
        if p.trial.task == "CoLA"
        else p
        for p in incremental(("SST-2", "CoLA"))
    ]
    found = compare_studies(a, write_results(tmp_path / "b", other, BASE))
    assert set(found.curves["task"]) == {"SST-2"}
    assert "CoLA has other examples" in found.unpaired[0][0]


def test_the_error_without_pairs_gives_the_reason(tmp_path):
    a = write_results(tmp_path / "a", incremental(("SST-2",)), BASE)
    b = write_results(tmp_path / "b", [Point("probing", "", 1, trial("RTE"))], BASE)
    with pytest.raises(WhichlayersError) as raised:
        compare_studies(a, b)
    first, *reasons, last = str(raised.value).splitlines()  # one reason per line
    assert first.endswith("have no pair of trials:")
    assert [reason.partition(": ")[0] for reason in reasons] == ["- incremental, in a", "- probing, in b"]
    assert last.startswith("Run both studies with the same tasks")


def test_one_trial_per_study_gives_a_difference_without_an_interval(tmp_path):
    folders = [write_results(tmp_path / n, incremental(trials=1), BASE, name=n) for n in "ab"]
    found = compare_studies(*folders)
    assert found.curves["p"].isna().all()
    assert list(found.curves["mean"]) == [0.0]


def test_studies_without_a_common_task_have_no_pairs(tmp_path):
    one = write_results(tmp_path / "a", incremental(("SST-2",), (500,), 2), lifelike(6))
    other = write_results(tmp_path / "b", incremental(("CoLA",), (500,), 2), lifelike(6))
    with pytest.raises(WhichlayersError, match="have no pair of trials"):
        compare_studies(one, other)


def test_curves_are_in_the_order_of_the_first_study(tmp_path):
    a = write_results(tmp_path / "a", incremental(("SST-2", "CoLA"), trials=2), BASE)
    b = write_results(tmp_path / "b", incremental(("CoLA", "SST-2"), trials=2), BASE)
    assert compare_studies(a, b).curves["task"].tolist() == ["SST-2", "CoLA"]
    assert compare_studies(b, a).curves["task"].tolist() == ["CoLA", "SST-2"]


@pytest.mark.parametrize(
    ("missing", "ks", "seeds"),
    [
        ({(2, 3)}, (0, 1), (0, 1, 2, 3)),  # k = 2 lacks seed 3: the other k have all seeds
        ({(0, 0), (1, 1), (2, 2), (2, 3)}, (0,), (1, 2, 3)),  # no k has all: the first of those with most
    ],
)
def test_a_curve_is_the_mean_over_the_k_that_all_seeds_have(tmp_path, missing, ks, seeds):
    points = incremental(trials=4, ks=(0, 1, 2))

    def score(p):
        return None if (p.x, p.trial.seed) in missing else BASE(p) + 0.01 * (p.x + 1) * (1 + p.trial.seed)

    a = write_results(tmp_path / "a", points, BASE)
    b = write_results(tmp_path / "b", points, score)
    for first, second, sign in ((a, b, 1), (b, a, -1)):
        (row,) = compare_studies(first, second).curves.itertuples(index=False)
        expected = np.array([np.mean([0.01 * (k + 1) * (1 + s) for k in ks]) for s in seeds])
        assert (row.points, row.n, row.metric) == (len(ks), len(seeds), "accuracy")
        assert (row.mean, row.p) == pytest.approx(
            (sign * expected.mean(), stats.ttest_1samp(expected, 0).pvalue)
        )
        interval = stats.ttest_1samp(sign * expected, 0).confidence_interval()
        assert (row.low, row.high, row.sd) == pytest.approx(
            (interval.low, interval.high, expected.std(ddof=1))
        )


def test_points_have_the_means_of_both_studies(tmp_path):
    points = incremental(trials=3, ks=(2, 0))
    a = write_results(tmp_path / "a", points, BASE)
    b = write_results(tmp_path / "b", points, lambda p: BASE(p) + 0.1)
    table = compare_studies(a, b).points
    assert table["x"].tolist() == [0, 2]
    for row in table.itertuples():
        scores = [BASE(p) for p in points if p.x == row.x]
        assert (row.mean_a, row.mean_b) == pytest.approx((np.mean(scores), np.mean(scores) + 0.1))


def changed(points, **changes):
    return [dataclasses.replace(p, trial=dataclasses.replace(p.trial, **changes)) for p in points]


def test_settings_of_pairs_and_settings_that_differ(tmp_path):
    """Both studies have two learning rates, which name the curves; heads differ, one each."""
    points = [
        p for lr in (1e-5, 5e-5) for p in changed(incremental(trials=2, ks=(0, 3)), training=Training(lr=lr))
    ]
    a = write_results(tmp_path / "a", points, BASE)
    b = write_results(tmp_path / "b", changed(points, head="cls"), BASE)
    found = compare_studies(a, b)
    assert found.curves["setting"].tolist() == ["lr 1e-05", "lr 5e-05"]
    assert found.differs == [("head", "mean", "cls")]
    one = write_results(tmp_path / "one", [p for p in points if p.trial.training.lr == 1e-5], BASE)
    several = compare_studies(a, one)  # one study has several values: trials of a pair have the same
    assert several.curves["setting"].tolist() == [""]
    assert dict(several.unpaired) == {
        "incremental, in a: the other study has no finished trial of the same lr, point, task, training size and "
        "seed": 4
    }


def test_curves_that_one_study_alone_names_have_no_counterpart(tmp_path):
    """The trials may be the same: it is the curve that the other study does not have."""
    points = changed(incremental(trials=2, ks=(0, 3)))
    named = [dataclasses.replace(p, condition="LoRA") for p in points if p.x]
    a = write_results(tmp_path / "a", points, BASE)
    b = write_results(tmp_path / "b", [p for p in points if not p.x] + named, BASE)
    assert list(dict(compare_studies(a, b).unpaired)) == [
        f"incremental, in {study}: the other study has no finished trial of the same curve, point, task, training size"
        " and seed"
        for study in "ab"
    ]


def test_layer_norms_files_and_depths_that_differ(tmp_path):
    points = incremental(trials=2, ks=(0, 6))
    kept = [
        dataclasses.replace(
            p,
            trial=dataclasses.replace(
                p.trial,
                surgery=dataclasses.replace(p.trial.surgery, keep_layer_norm=bool(p.trial.surgery.reinit)),
                model_fingerprint="other",
            ),
        )
        for p in points
    ]
    a = write_results(tmp_path / "a", points, BASE, name="a")
    b = write_results(tmp_path / "b", kept, BASE, name="b")
    found = compare_studies(a, b)
    assert ("keep layer norm", "layer norms reset", "layer norms kept") in found.differs
    assert ("files of bert-base-uncased", "bert-base-uncased-fp", "other") in found.differs
    assert len(found.differs) == 2
    assert (found.a.name, found.b.name) == ("a", "b")
    assert found.a.environment["device"] == "cpu"
    assert found.a.environment["torch"] == "2.13.0"
    assert found.a.environment["commit"] == "0123abcd"


def test_models_of_different_depth_are_paired_at_their_baselines(tmp_path):
    a = write_results(tmp_path / "a", localized(trials=2, depth=4, block=2), lifelike(4), depth=4)
    b = write_results(tmp_path / "b", localized(trials=2, depth=6), BASE, depth=6)
    found = compare_studies(a, b)
    assert set(found.pairs["condition"]) == {"all pretrained", "none pretrained"}
    assert found.unpaired[0][1] == 2 * (3 + 4) * 2


def test_versions_that_differ(tmp_path):
    folders = [write_results(tmp_path / name, incremental(trials=2, ks=(0,)), BASE) for name in "ab"]
    with sqlite3.connect(folders[1] / "results.db") as db:
        run = dict(
            zip(
                [r[1] for r in db.execute("PRAGMA table_info(runs)")],
                db.execute("SELECT * FROM runs").fetchone(),
                strict=True,
            )
        )
        run |= {"run_id": 2, "versions": '{"torch": "3.0"}', "device": None, "git_commit": None}
        db.execute(f"INSERT INTO runs VALUES ({','.join('?' * len(run))})", list(run.values()))
    assert compare_studies(*folders).differs == [
        ("commit", "0123abcd", ""),
        ("device", "cpu", ""),
        ("python", "3.11.4", ""),
        ("torch", "2.13.0", "3.0"),
        ("transformers", "5.22.2", ""),
    ]


def test_two_trials_of_one_seed_at_one_point_cannot_be_paired(tmp_path):
    """Models with and without a BOS token, which is neither a setting nor a condition."""
    points = incremental(trials=1, ks=(0, 3))
    a = write_results(tmp_path / "a", points, BASE)
    b = write_results(tmp_path / "b", points + changed(points, bos=True), BASE)
    for first, second in ((a, b), (b, a)):
        with pytest.raises(
            WhichlayersError, match=r"/b: incremental on SST-2 has two trials of seed 0 at one point"
        ):
            compare_studies(first, second)
