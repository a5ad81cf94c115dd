import pytest
from fake_facts import a_study

from whichlayers.study.describe import describe_study
from whichlayers.study.preset import list_presets, load_preset


def test_what_a_study_asks():
    assert describe_study(a_study(tasks=["SST-2", "CoLA"], trials={"500": 5, "default": 1})) == (
        "What do the layers of some/model carry over to SST-2 and CoLA? "
        "Incremental: keep the first k pretrained layers and re-initialise the rest, for every k "
        "(recipe as_described). "
        "Each model is finetuned on 240 training examples for 3 epochs, at learning rate 2e-05, "
        "in 5 trials up to 500 examples and 1 trial above, each on a random subset."
    )


def test_what_an_experiment_changes_is_said():
    text = describe_study(
        a_study(
            experiments=[
                {
                    "kind": "single_layer",
                    "layers": [1, 2],
                    "reinit_lr_factor": 5,
                    "train_sizes": [0.1, "all"],
                },
                {"kind": "prune", "top": [2, 4], "drop": [[1, 3]], "lr": 1e-3, "trials": 4, "epochs": 1},
                {"kind": "localized", "block": 2, "keep_layer_norm": [True, False]},
            ]
        )
    )
    assert "re-initialise layers 1 and 2, one at a time" in text
    assert "5 times the learning rate" in text
    assert "on 10% and all of the training examples" in text
    assert "drop the top 2 or 4 layers, or layers 1 and 3" in text
    assert "4 trials; 1 epoch; learning rate 0.001" in text
    assert "layer norms drawn anew and kept" in text


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            ["all"],
            "on all training examples for 3 epochs, at learning rate 2e-05, in 2 trials, each with a seed",
        ),
        ([8, 0.5], "in 2 trials, each on a random subset."),
        ([8, "all"], "in 2 trials, each on a random subset or on all."),
    ],
)
def test_all_examples_are_no_subset(sizes, said):
    assert said in describe_study(a_study(train_sizes=sizes, trials=2))


def test_a_model_in_a_folder_is_called_by_its_last_part():
    assert "layers of tiny and org/bert carry" in describe_study(a_study(models=["/a/b/tiny", "org/bert"]))
    assert "layers of /a/tiny and /b/tiny carry" in describe_study(a_study(models=["/a/tiny", "/b/tiny"]))


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_can_be_said_in_words(name):
    text = describe_study(load_preset(name))
    assert text.endswith(".")
    assert 100 < len(text) < 300 * len(load_preset(name).experiments) + 700


def test_a_study_of_probes_finetunes_nothing():
    text = describe_study(a_study(experiments=[{"kind": "probing", "layers": [0, 6], "lr": 0.01}]))
    assert "a linear classifier on layers 0 and 6 of the frozen model, for at most 40 epochs" in text
    assert "learning rate 0.01" in text
    assert "is probed with 240 training examples, in 1 trial" in text
    assert "finetune" not in text


def test_a_question_asked_in_several_ways_is_told_once():
    blocks = {"kind": "localized", "block": 2}
    both = ["SST-2", "CoLA"]
    text = describe_study(
        a_study(tasks=both, experiments=[{**blocks, "tasks": ["SST-2"], "trials": 5}, blocks])
    )
    assert text.count("Localized: ") == 1
    assert "(on SST-2, recipe as_described, 5 trials; recipe as_described)." in text
    plain = {"kind": "prune", "top": [2]}
    text = describe_study(a_study(tasks=both, experiments=[{**plain, "tasks": ["SST-2"]}, plain]))
    assert "(on SST-2; as usual)." in text


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"standardize": True}, "(neurons standardized)."),
        ({"l2": 0.1, "l2_norm": "plain"}, "(plain L2 norm)."),
    ],
)
def test_probes_that_are_not_as_usual_are_said_to_be_so(setting, said):
    asked = {"kind": "word_probing", **setting}
    assert said in describe_study(a_study(corpora=["builtin:pos"], experiments=[asked]))
