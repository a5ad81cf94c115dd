"""Building the recommended or a described variant: what is trained, saved and written on the card."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from easy_study import texts_and_labels
from transformers import AutoConfig

import whichlayers
from whichlayers.analysis.intervals import ends_of_one_of
from whichlayers.deploy.build import BuildOptions, build
from whichlayers.deploy.choose import parse_layers
from whichlayers.deploy.train import best_seed, finetune_seeds, hold_out
from whichlayers.engine.finetune import finetune
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import StudyFolder
from whichlayers.runs.assets import Assets
from whichlayers.study.expand import expand
from whichlayers.study.study_file import load_study
from whichlayers.text import format_range
from whichlayers.trial import Surgery

DEV = texts_and_labels(80, seed=2)


def dev_logits(folder):
    return whichlayers.load_model(folder).logits([text for text, _ in DEV])


@pytest.fixture(scope="module")
def one_layer(easy_results, tmp_path_factory):
    return easy_results.build(tmp_path_factory.mktemp("built") / "one", layers=[1])[0]


@pytest.fixture(scope="module")
def assets_and_trial(easy_results):
    """The assets of the study, and its trial with two of three layers."""
    study, assets = load_study(easy_results.folder), Assets(None)
    points = expand(study, assets)
    return assets, next(p.trial for p in points if p.condition == "top" and p.x == 1)


def test_the_saved_model_is_the_trained_one(easy_results, assets_and_trial, tmp_path):
    """The dev loss of the loaded folder equals the one that the engine computed at the end of training."""
    assets, trial = assets_and_trial
    result = finetune([trial], assets.encoder(trial), assets.data(trial))[0]
    (built,) = easy_results.build(tmp_path / "m", layers=[1, 2])
    labels = torch.tensor(assets.data(trial).evals[""].labels)
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(dev_logits(built.folder)), labels)
    assert loss.item() == pytest.approx(result.epochs[-1].dev_loss, abs=1e-5)
    assert built.score.value == result.epochs[-1].metrics["accuracy"]


def test_config_has_the_true_depth_and_labels(one_layer):
    config = AutoConfig.from_pretrained(one_layer.folder)
    assert config.num_hidden_layers == 1
    assert config.id2label == {0: "bad", 1: "good"}
    metadata = whichlayers.load_model(one_layer.folder).metadata
    assert (metadata.layers, metadata.depth) == ((1,), 3)
    assert not list(one_layer.folder.parent.glob("*.partial"))


def test_the_card_says_what_was_done_and_how_it_scores(one_layer, easy_results):
    card = (one_layer.folder / "README.md").read_text()
    assert "Kept: layer 1" in card
    assert "120 of 150 training examples" in card
    assert (
        f"accuracy {100 * one_layer.score.value:.1f} (95% bootstrap interval over the 80 dev examples" in card
    )
    scores = easy_results.frame().query("condition == 'top' and x == 2")["accuracy"]
    assert f"{100 * scores.mean():.1f} (mean of 4 trials, 95% t interval" in card
    assert "adjusted for the choice" not in card  # asked for, not chosen by its scores
    assert "do not state a license" in card
    assert str(easy_results.folder.parent) not in card + (one_layer.folder / "whichlayers.json").read_text()


def test_the_recommended_variant_is_the_one_of_the_answer(easy_results, tmp_path):
    recommendation = easy_results.recommend(tolerance=0.9)  # anything is within such a tolerance
    (answer,) = recommendation.recommendation.of("smallest")
    assert answer.layers == (1,)
    (built,) = easy_results.build(tmp_path / "m", tolerance=0.9)
    assert built.answer == answer
    assert built.trial.surgery.order == (1,)
    card = (built.folder / "README.md").read_text()
    assert answer.text in card
    scores = easy_results.frame().query("condition == 'top' and x == 2")["accuracy"]
    ends = format_range(*ends_of_one_of(2, scores.mean(), scores.std(), 4))
    assert f"(mean of 4 trials, 95% t interval {ends}, adjusted for the choice among 2)" in card


def test_without_a_recommendation_the_full_model_is_built(easy_results, tmp_path):
    (built,) = easy_results.build(tmp_path / "m", tolerance=1e-6)
    assert built.answer is None
    assert built.trial.surgery.order is None
    assert "nothing else is recommended" in built.reason


def test_reinit_and_freeze(easy_results, tmp_path):
    """Frozen layers and embeddings keep the pretrained weights, the others change."""
    from safetensors.torch import load_file

    (built,) = easy_results.build(tmp_path / "m", freeze=[1, 2], reinit=[3])
    pretrained = load_file(easy_results.folder.parent / "model" / "model.safetensors")
    saved = load_file(built.folder / "model.safetensors")
    for name, values in pretrained.items():
        frozen = name.startswith(("embeddings", "encoder.layer.0.", "encoder.layer.1."))
        if frozen or (name.startswith("encoder.layer.2.") and name.endswith("dense.weight")):
            assert torch.equal(values, saved[name]) == frozen, name
    assert "Frozen: layers 1-2" in (built.folder / "README.md").read_text()
    assert built.reason == "as requested: re-initialize layer 3, freeze layers 1-2."


def test_the_best_of_several_seeds_is_chosen_on_held_out_rows(easy_results, assets_and_trial, tmp_path):
    assets, trial = assets_and_trial
    data = assets.data(trial)
    held = hold_out(data, seed=0)
    assert (len(held.train), len(held.evals[""])) == (135, 15)

    def rows(split):
        return [tuple(split.ids[a:b]) for a, b in zip(split.offsets, split.offsets[1:], strict=False)]

    assert sorted([*rows(held.train), *rows(held.evals[""])]) == sorted(rows(data.train))
    trials = [trial.__class__(**vars(trial) | {"seed": seed}) for seed in range(3)]
    models = list(finetune_seeds(trials, assets, True, "cpu"))
    best = best_seed(iter(models))
    assert best.held_out == max((m.held_out for m in models), key=lambda score: (score[0], -score[1]))
    (built,) = easy_results.build(tmp_path / "m", layers=[1, 2], seeds=3)
    assert built.trial.seed == best.trial.seed
    card = (built.folder / "README.md").read_text()
    assert "Chosen among 3 seeds by its score on 15 training examples" in card


def test_all_seeds_can_be_kept_and_all_rows_used(easy_results, tmp_path):
    built = easy_results.build(tmp_path / "m", layers=[1], seeds=2, keep="all", train="all")
    assert [b.folder.name for b in built] == ["seed-0", "seed-1"]
    assert {b.trial.train_size for b in built} == {150}
    assert not np.allclose(dev_logits(built[0].folder), dev_logits(built[1].folder))
    with pytest.raises(WhichlayersError, match="seed-0, seed-1"):
        whichlayers.load_model(tmp_path / "m")


def test_bad_requests(easy_results, tmp_path):
    with pytest.raises(WhichlayersError, match="--layers: there is no layer 9, the model has layers 1 to 3"):
        easy_results.build(tmp_path / "m", layers=[1, 9])
    with pytest.raises(
        WhichlayersError, match="--reinit: there is no layer 2, the resulting model has layers 1 to 1"
    ):
        easy_results.build(tmp_path / "m", layers=[1], reinit=[2])
    with pytest.raises(WhichlayersError, match="--freeze: there is no layer 3, the model has layers 1 to 2"):
        easy_results.build(tmp_path / "m", layers=[1, 2], freeze=[3])
    with pytest.raises(WhichlayersError, match="--reinit and --freeze both name layer 2"):
        easy_results.build(tmp_path / "m", reinit=[2, 3], freeze=[1, 2])
    with pytest.raises(WhichlayersError, match="150 training examples"):
        easy_results.build(tmp_path / "m", train=151)
    with pytest.raises(WhichlayersError, match="seeds = 0"):
        easy_results.build(tmp_path / "m", seeds=0)
    with pytest.raises(
        WhichlayersError, match="--task nope: the study has no such task; choose one of: signs"
    ):
        easy_results.build(tmp_path / "m", task="nope")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(WhichlayersError, match="already exists"):
        build(easy_results.folder, tmp_path / "full", BuildOptions())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full"]  # nothing is left behind


@pytest.mark.parametrize(
    ("text", "layers"), [("1-3", (1, 2, 3)), ("2", (2,)), ("1,3, 5-6", (1, 3, 5, 6)), (None, ())]
)
def test_layers_are_parsed(text, layers):
    assert parse_layers("--layers", text) == layers


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "1 2"])
def test_bad_layers_are_an_error(text):
    with pytest.raises(WhichlayersError, match="--layers"):
        parse_layers("--layers", text)


def test_costs_are_measured_once_and_stored(easy_results):
    first = easy_results.recommend(tolerance=0.9)
    stored = json.loads((easy_results.folder / "costs.json").read_text())
    assert {tuple(cost["layers"]) for cost in stored} == {(1,), (1, 2, 3)}
    smaller, full = sorted(stored, key=lambda cost: cost["parameters"])
    assert full["bytes"] == 4 * full["parameters"]
    assert smaller["milliseconds"] > 0
    assert "parameters instead of" in str(first)
    assert easy_results.recommend(tolerance=0.9).costs == first.costs


def test_the_next_study_is_valid_and_asks_what_is_missing(easy_results):
    written = easy_results.recommend().next_study
    assert written.parent == StudyFolder(easy_results.folder).path
    study = load_study(written)
    kinds = [e.kind for e in study.experiments]
    assert set(kinds) == {"incremental", "lr_decay", "freeze", "adapt", "probing"}
    assert study.trials.default >= 6
    asked = {p.experiment for p in expand(study, Assets(None))}
    assert asked == {*kinds, "adapt_layers"}


def test_frozen_features_are_the_hidden_states_of_the_chosen_layer(
    easy_results, assets_and_trial, tmp_path, monkeypatch
):
    from transformers import AutoModel, AutoTokenizer

    from whichlayers.deploy import build as build_module
    from whichlayers.deploy.choose import Choice
    from whichlayers.trial import Probe

    _, trial = assets_and_trial
    probe = dataclasses.replace(trial, surgery=Surgery(), probe=Probe(layer=2))
    real = build_module.choose

    def choose_probe(*arguments, **options):
        real(*arguments, **options | {"goal": None})  # loads model and task
        return Choice(probe, "chosen by a test.")

    monkeypatch.setattr(build_module, "choose", choose_probe)
    (built,) = easy_results.build(tmp_path / "m", goal="features")
    batch = AutoTokenizer.from_pretrained(built.folder)([DEV[0][0]], return_tensors="pt")
    base = AutoModel.from_pretrained(easy_results.folder.parent / "model").eval()
    with torch.no_grad():
        expected = base(**batch, output_hidden_states=True).hidden_states[2]
        found = AutoModel.from_pretrained(built.folder).eval()(**batch).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert json.loads((built.folder / "modules.json").read_text())[-1]["path"] == "1_Pooling"
    assert "Not finetuned" in (built.folder / "README.md").read_text()
    with pytest.raises(WhichlayersError, match="without a head"):
        whichlayers.load_model(built.folder)
