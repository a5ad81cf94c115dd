"""Studies that freeze layers and train adapters, from the study file to the figures, with the real engine."""

from __future__ import annotations

import pytest
from easy_study import easy_study
from small_study import small_study

import whichlayers
from whichlayers.plots.figures import figure_names
from whichlayers.results.export import points_frame
from whichlayers.results.folder import StudyFolder
from whichlayers.runs import machine


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "usable_cores", lambda: 1)
        yield


def test_a_study_of_freezing_and_adapters(tmp_path):
    study = small_study(
        tmp_path,
        train_sizes=[24],
        experiments=[
            {"kind": "freeze", "train": ["top", "biases", "head"], "frozen": [0, 2]},
            {"kind": "adapt", "where": ["everywhere", "single"], "targets": "query", "rank": 2},
        ],
    )
    whichlayers.run(study, tmp_path / "study", device="cpu", workers=0)
    frame = points_frame(StudyFolder(tmp_path / "study"))
    by_point = frame.groupby(["experiment", "condition", "x"])
    assert (by_point["trial_id"].nunique() == 2).all()
    trained = by_point["trained_parameters"].first()
    head = 16 * 2 + 2
    assert trained["freeze", "head", 3] == head
    assert trained["adapt_layers", "single", 2] == head + 2 * (16 + 16)
    assert trained["adapt", "everywhere", 3] == head + 3 * 2 * (16 + 16)
    assert trained["freeze", "head", 3] < trained["freeze", "biases", 0] < trained["freeze", "top", 2]
    memory = by_point["memory"].mean()
    assert memory["freeze", "head", 3] < memory["freeze", "top", 2] < memory["freeze", "top", 0]
    assert set(frame["adapter"].notna()[frame["experiment"] == "freeze"]) == {False}
    names = figure_names(tmp_path / "study")
    assert {"freeze", "adapt", "adapt_layers", "freeze_time", "freeze_memory", "adapt_memory"} <= set(names)


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ({"kind": "adapt", "targets": ["q_proj"]}, "it has: attention.self.query, attention.self.key"),
        ({"kind": "adapt", "rank": 17}, "has a width of 16; allowed: 1 to 16"),
        ({"kind": "freeze", "train": "bottom", "embeddings": "frozen"}, "nothing but the head to train"),
    ],
)
def test_impossible_settings_are_refused_before_anything_trains(tmp_path, experiment, message):
    study = small_study(tmp_path, experiments=[experiment])
    with pytest.raises(whichlayers.WhichlayersError, match=message):
        whichlayers.run(study, tmp_path / "study", device="cpu", workers=0)
    assert not (tmp_path / "study" / "results.db").exists()


def test_adapters_with_a_learning_rate_of_their_own_are_run_recommended_and_built(tmp_path):
    """The baseline keeps the learning rate of [training], and trials pair by seed."""
    experiment = {"kind": "adapt", "where": "everywhere", "rank": 4, "peft_lr": 0.05}
    study = easy_study(tmp_path, experiments=[experiment])
    results = whichlayers.run(study, tmp_path / "study", device="cpu", workers=0)
    frame = points_frame(StudyFolder(tmp_path / "study"))
    assert frame.groupby("condition")["lr"].unique().map(list).to_dict() == {
        "all pretrained": [5e-3],
        "everywhere, lr 0.05": [0.05],
    }
    (contrast,) = results.contrasts().itertuples()
    assert (contrast.condition, contrast.n) == ("everywhere, lr 0.05", 4)
    (answer,) = results.recommend(tolerance=0.5).recommendation.of("adapters")
    assert (answer.verdict, answer.choice) == ("recommended", "adapters in all 3 layers (lr 0.05)")
    (built,) = results.build(tmp_path / "model-with-adapters", question="adapters", tolerance=0.5)
    assert (built.trial.training.lr, built.trial.adapter.rank) == (0.05, 4)
    assert built.score.value == pytest.approx(
        frame.query("lr == 0.05 and seed == 0")["accuracy"].iloc[0], abs=0.02
    )
