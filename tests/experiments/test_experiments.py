import numpy as np
import pytest
from fake_facts import a_study

from whichlayers.config.errors import StudyError
from whichlayers.experiments import DISPLAYS, KINDS, display_of, sort_experiments
from whichlayers.experiments.epochs import Epochs
from whichlayers.experiments.freeze import Freeze
from whichlayers.experiments.incremental import Incremental
from whichlayers.experiments.localized import Localized
from whichlayers.experiments.permutation import Permutation
from whichlayers.experiments.probing import Probing
from whichlayers.experiments.prune import Prune
from whichlayers.experiments.single_layer import SingleLayer
from whichlayers.plots.figures import PLOTS
from whichlayers.trial import Probe

DEPTHS = [1, 2, 3, 6, 12, 24]


@pytest.mark.parametrize("depth", DEPTHS)
def test_incremental_keeps_the_first_k(depth):
    variants = list(Incremental().variants(depth))
    assert [a.x for a in variants] == list(range(depth + 1))
    for a in variants:
        assert set(a.reinit) == {layer for layer in range(1, depth + 1) if layer > a.x}
    assert variants[-1].reinit == ()


@pytest.mark.parametrize(("depth", "kept"), [(1, [0, 1]), (2, [0, 1, 2]), (6, [0, 3, 6]), (12, [0, 6, 12])])
def test_half_and_depth_are_those_of_the_model(depth, kept):
    experiment = Incremental(keep=[0, "half", "depth"])
    assert not list(experiment.depth_errors(depth))
    assert [a.x for a in experiment.variants(depth)] == kept
    assert [a.x for a in Epochs().variants(depth)] == kept


def test_keep_names_numbers_of_layers_by_the_depth():
    experiment = Incremental(keep=["depth-3", "half", "depth-1", 2, "depth"])
    assert [v.x for v in experiment.variants(4)] == [1, 2, 3, 4]
    assert [v.x for v in experiment.variants(12)] == [9, 6, 11, 2, 12]
    assert [(e.value, e.allowed) for e in experiment.depth_errors(2)] == [
        ("depth-3", '0 to 2 layers can be kept, so at most "depth-2"')
    ]
    assert not list(experiment.depth_errors(3))
    frozen = Freeze(train="top", frozen=["depth-2", 0])
    assert [v.x for v in frozen.variants(5) if not v.is_baseline] == [3, 0]
    assert [e.value for e in frozen.depth_errors(1)] == ["depth-2"]


@pytest.mark.parametrize(
    ("keep", "text"),
    [
        ("all", "every k"),
        ([0, "half", "depth"], "k = 0, half of the layers and all layers"),
        (["depth"], "k = all layers"),
        (["depth-1"], "k = all but 1 layer"),
        ([3, "depth-6", "depth-1", "depth"], "k = 3, all but 6 or 1 layers and all layers"),
    ],
)
def test_the_summary_says_what_names_of_numbers_mean(keep, text):
    assert Incremental(keep=keep).summary().endswith(f", for {text}")
    assert Freeze(train="top", frozen=keep).summary().endswith(f", for {text}")


@pytest.mark.parametrize(
    "name", ["depth-0", "depth-", "depth-x", "depth - 1", "depth+1", "depth-1.5", "depth-12345"]
)
def test_other_names_of_numbers_of_layers_are_refused(name):
    with pytest.raises(StudyError, match="depth-N"):
        a_study(experiments=[{"kind": "incremental", "keep": [0, name]}])


def test_keep_rejects_unknown_names():
    with pytest.raises(
        StudyError, match='integers of at least 0, "half", "depth", or "depth-N" for N layers fewer'
    ):
        a_study(experiments=[{"kind": "incremental", "keep": ["most"]}])


def test_a_correlation_needs_three_orders():
    with pytest.raises(StudyError, match=r"permutations = 1.*3"):
        a_study(experiments=[{"kind": "permutation", "permutations": 1}])


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("block", [1, 2, 3])
def test_blocks_reinitialized_and_preserved_complement_each_other(depth, block):
    experiment = Localized(block=block)
    if block > depth:
        assert [(e.key, e.value) for e in experiment.depth_errors(depth)] == [("block", block)]
        return
    assert not list(experiment.depth_errors(depth))
    points = {(a.condition, a.x): set(a.reinit) for a in experiment.variants(depth)}
    everything = set(range(1, depth + 1))
    assert points.pop(("all pretrained", 0)) == set()
    assert points.pop(("none pretrained", 0)) == everything
    assert len(points) == 2 * (depth - block + 1)
    for first in range(1, depth - block + 2):
        reinitialized = points["block reinitialized", first]
        assert reinitialized == {n for n in everything if first <= n < first + block}
        assert points["block preserved", first] == everything - reinitialized


@pytest.mark.parametrize("depth", DEPTHS)
def test_single_layer(depth):
    variants = [a for a in SingleLayer().variants(depth) if not a.is_baseline]
    assert [(a.x, a.reinit) for a in variants] == [(n, (n,)) for n in range(1, depth + 1)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_permutations_are_those_of_the_released_code(depth):
    variants = [a for a in Permutation(permutations=4).variants(depth) if not a.is_baseline]
    assert [a.x for a in variants] == [1, 2, 3, 4]
    for n, a in enumerate(variants, start=1):
        order = tuple(int(i) for i in np.random.RandomState(n).permutation(depth) + 1)
        assert a.order == (None if order == tuple(range(1, depth + 1)) else order)
        assert a.reinit == ()


def test_the_first_permutation_of_twelve_layers():
    first = next(a for a in Permutation().variants(12) if not a.is_baseline)
    assert first.order == (3, 4, 5, 11, 2, 7, 1, 8, 12, 10, 9, 6)


def test_prune():
    variants = {
        (a.condition, a.x): a.order for a in Prune(top=2, bottom=[1, 3], drop=[[2, 3], [4]]).variants(4)
    }
    assert variants == {
        ("all pretrained", 0): None,
        ("top", 2): (1, 2),
        ("bottom", 1): (2, 3, 4),
        ("bottom", 3): (4,),
        ("listed 2,3", 2): (1, 4),
        ("listed 4", 1): (1, 2, 3),
    }


def test_prune_drops_every_number_of_top_layers_by_default():
    for experiment in (Prune(), Prune(top="all")):
        variants = {(a.condition, a.x): a.order for a in experiment.variants(4)}
        assert variants == {
            ("all pretrained", 0): None,
            ("top", 1): (1, 2, 3),
            ("top", 2): (1, 2),
            ("top", 3): (1,),
        }
        assert experiment.summary() == "drop any number of top layers"
        assert not list(experiment.depth_errors(4))
    assert {a.condition for a in Prune(bottom=1).variants(4)} == {"all pretrained", "bottom"}
    study = a_study(experiments=["prune"])
    assert 'top = "all"' in study.to_toml()


@pytest.mark.parametrize("top", ["each", [0], [1, "half"], [True]])
def test_numbers_of_top_layers_are_checked(top):
    with pytest.raises(StudyError, match='allowed: "all", or a list of integers of at least 1'):
        a_study(experiments=[{"kind": "prune", "top": top}])


@pytest.mark.parametrize("flat", [[7, 8], [[7], 8]])
def test_layers_to_drop_are_lists_of_lists(flat):
    with pytest.raises(StudyError) as caught:
        a_study(experiments=[{"kind": "prune", "drop": flat}])
    assert "experiments[0].drop" in str(caught.value)
    if flat == [7, 8]:
        assert "drop = [[7], [8]] gives a model without each of them, drop = [[7, 8]] one" in str(
            caught.value
        )
    with pytest.raises(StudyError, match=r"drop = \[\[7\]\]"):
        a_study(experiments=[{"kind": "prune", "drop": 7}])


@pytest.mark.parametrize(
    ("experiment", "depth", "key", "value", "allowed"),
    [
        (Incremental(keep=[0, 6, 7]), 6, "keep", 7, "0 to 6"),
        (SingleLayer(layers=[1, 13]), 12, "layers", 13, "1 to 12"),
        (Prune(top=[6]), 6, "top", 6, "1 to 5"),
        (Prune(bottom=[7]), 6, "bottom", 7, "1 to 5"),
        (Prune(drop=[[1, 7]]), 6, "drop", (1, 7), "1 to 6"),
        (Prune(drop=[[1, 2, 3]]), 3, "drop", (1, 2, 3), "1 to 2"),
    ],
)
def test_depth_errors_say_what_is_allowed(experiment, depth, key, value, allowed):
    (error,) = experiment.depth_errors(depth)
    assert (error.key, error.value) == (key, value)
    assert allowed in error.allowed
    assert not list(experiment.depth_errors(24))


@pytest.mark.parametrize("depth", DEPTHS)
def test_probing_all_layers_excludes_the_embeddings(depth):
    variants = list(Probing(pooling="summary", lr=0.1).variants(depth))
    assert [a.x for a in variants] == list(range(1, depth + 1))
    assert [a.probe for a in variants] == [Probe(n, pooling="summary", lr=0.1) for n in range(1, depth + 1)]
    assert all(a.order is None and a.reinit == () for a in variants)


def test_probing_some_layers():
    experiment = Probing(layers=[0, 3, 7])
    assert [a.probe for a in Probing(layers=[0, 3]).variants(4)] == [Probe(0), Probe(3)]
    assert [(e.key, e.value) for e in experiment.depth_errors(6)] == [("layers", 7)]
    assert not list(experiment.depth_errors(7))


def test_every_setting_of_a_probe_is_a_key():
    settings = {"pooling": "summary", "max_epochs": 3, "patience": 2, "held_out": 0.5, "batch_size": 4}
    settings |= {"lr": 0.5, "weight_decay": 0.25, "standardize": True}
    (variant,) = Probing(layers=1, **settings).variants(2)
    assert vars(variant.probe) == {"layer": 1} | settings


@pytest.mark.parametrize("kind", ["probing", "word_probing", "neurons", "selectivity"])
def test_standardize_has_two_spellings(kind):
    def study(**keys):
        return a_study(corpora=["builtin:pos"], experiments=[{"kind": kind, **keys}])

    assert study(standardise=True) == study(standardize=True) != study()
    assert "standardise" not in study(standardise=True).to_toml()
    with pytest.raises(
        StudyError, match=r"standardise.*another spelling of `standardize`, which is also given; remove one"
    ):
        study(standardise=True, standardize=True)


def test_other_experiments_have_neither_spelling():
    with pytest.raises(StudyError, match=r"standardise"):
        a_study(experiments=[{"kind": "incremental", "standardise": True}])


# --- displays ---


def test_every_kind_displays_what_it_stores_under_a_name_of_its_own():
    names = [display.name for kind in KINDS.values() for display in kind.displays]
    assert len(names) == len(set(names))
    assert all(kind in [display.name for display in KINDS[kind].displays] for kind in KINDS)
    for display in DISPLAYS.values():
        assert display.plot in PLOTS
        assert display.title
        assert display.x_label
        assert display.description.endswith(".")


def test_positions_and_conditions_in_sentences():
    assert display_of("prune").position(1) == "1 layer dropped"
    assert display_of("prune").position(2.0) == "2 layers dropped"
    assert display_of("localized").position(3.0) == "the block that starts at layer 3"
    assert display_of("prune").condition_name("top") == "top layers dropped"
    assert display_of("localized").condition_name("block reinitialized") == "block re-initialized"
    assert display_of("incremental").condition_name("") == "incremental re-initialization"
    assert display_of("neurons").x_name(100) == "all"
    assert display_of("word_probing").x_name(100) == "100"


def test_an_experiment_of_another_version_has_a_generic_display():
    display = display_of("some_new_kind")
    assert (display.title, display.x_label, display.plot) == ("Some new kind", "x", "conditions")
    assert (display.x_header, display.position(2.0), display.task_noun) == ("x", "x = 2", "task")
    assert sort_experiments(["zz", "probing", "aa", "localized"]) == ["localized", "probing", "aa", "zz"]
