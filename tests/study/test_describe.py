import pytest
from fake_facts import a_study

from whichlayers.study.describe import describe_study
from whichlayers.study.preset import list_presets, load_preset


def test_description_of_a_study():
    assert describe_study(a_study(tasks=["SST-2", "CoLA"], trials={"500": 5, "default": 1})) == (
        "Which layers of some/model do SST-2 and CoLA need? "
        "Incremental: keep the first k pretrained layers and re-initialize the others, for every k "
        "(recipe as_described). "
        "Each model is finetuned on 240 training examples for 3 epochs, with learning rate 2e-05, "
        "in 5 trials up to 500 examples and 1 trial above, each on a random subset."
    )


def test_settings_of_an_experiment_are_described():
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
    assert "re-initialize layers 1 and 2, one at a time" in text
    assert "re-initialized layers with 5 times the learning rate" in text
    assert "on 10% and all of the training examples" in text
    assert "drop the top 2 or 4 layers, or layers 1 and 3" in text
    assert "4 trials; 1 epoch; learning rate 0.001" in text
    assert "layer norms re-initialized and kept" in text


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (
            ["all"],
            "on all training examples for 3 epochs, with learning rate 2e-05, in 2 trials, each with its own seed.",
        ),
        ([8, 0.5], "in 2 trials, each on a random subset."),
        ([8, "all"], "in 2 trials, each on a random subset or on all examples."),
    ],
)
def test_all_examples_are_not_called_a_subset(sizes, expected):
    assert expected in describe_study(a_study(train_sizes=sizes, trials=2))


def test_a_model_in_a_folder_is_called_by_its_last_part():
    assert "Which layers of tiny and org/bert does" in describe_study(
        a_study(models=["/a/b/tiny", "org/bert"])
    )
    assert "Which layers of /a/tiny and /b/tiny does" in describe_study(
        a_study(models=["/a/tiny", "/b/tiny"])
    )


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_can_be_described(name):
    text = describe_study(load_preset(name))
    assert text.endswith(".")
    assert 100 < len(text) < 300 * len(load_preset(name).experiments) + 700


def test_a_study_of_probes_finetunes_nothing():
    text = describe_study(a_study(experiments=[{"kind": "probing", "layers": [0, 6], "lr": 0.01}]))
    assert "a linear probe on layers 0 and 6 of the frozen model, for at most 40 epochs" in text
    assert "learning rate 0.01" in text
    assert "is probed with 240 training examples, in 1 trial" in text
    assert "finetune" not in text


def test_experiments_with_different_settings_share_a_sentence():
    blocks = {"kind": "localized", "block": 2}
    both = ["SST-2", "CoLA"]
    text = describe_study(
        a_study(tasks=both, experiments=[{**blocks, "tasks": ["SST-2"], "trials": 5}, blocks])
    )
    assert text.count("Localized: ") == 1
    assert "(on SST-2, recipe as_described, 5 trials; recipe as_described)." in text
    plain = {"kind": "prune", "top": [2]}
    text = describe_study(a_study(tasks=both, experiments=[{**plain, "tasks": ["SST-2"]}, plain]))
    assert "(on SST-2; default settings)." in text


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"standardize": True}, "(neurons standardized)."),
        ({"l2": 0.1, "l2_norm": "plain"}, "(plain L2 norm)."),
    ],
)
def test_probe_settings_that_are_not_the_default_are_described(setting, expected):
    experiment = {"kind": "word_probing", **setting}
    assert expected in describe_study(a_study(corpora=["builtin:pos"], experiments=[experiment]))


def test_training_settings_of_an_experiment_are_described():
    training = {
        "epochs": 20,
        "lr": 1e-3,
        "betas": [0.9, 0.98],
        "bias_correction": False,
        "schedule": "constant",
    }
    usual = {"kind": "prune", "top": [1], "training": {"epochs": 3}}
    text = describe_study(a_study(experiments=[usual, {"kind": "prune", "top": [1], "training": training}]))
    settings = (
        "20 epochs, learning rate 0.001, betas 0.9 and 0.98, schedule constant, without bias correction"
    )
    assert f"(3 epochs; {settings})." in text


def test_frozen_and_trained_embeddings_are_named():
    """Without them, a model with all layers frozen reads as if its head alone were trained."""
    settings = {"kind": "freeze", "train": ["top", "head"], "frozen": "depth", "peft_lr": [1e-3, 1e-3]}
    texts = {
        e: describe_study(a_study(experiments=[settings | {"embeddings": e}]))
        for e in ("auto", "frozen", "trained")
    }
    start = "finetune those above or finetune the head alone, for k = all layers"
    end = " (head with learning rate 0.001)."
    assert f"{start}{end}" in texts["auto"]
    assert f"{start}, with frozen embeddings{end}" in texts["frozen"]
    assert f"{start}, with trained embeddings{end}" in texts["trained"]


def test_experiments_that_differ_in_their_settings_are_described_by_them():
    """Their curves name the settings, so that the description has to say which of them is which."""
    probes = [
        {"kind": "probing", **s} for s in ({}, {"pooling": "summary"}, {"standardize": True, "batch_size": 4})
    ]
    lora = [{"kind": "adapt", "where": "everywhere", **s} for s in ({}, {"alpha": 32, "dropout": 0.1})]
    text = describe_study(a_study(experiments=[*probes, *lora]))
    start = "Probing: train a linear probe on each layer of the frozen model"
    assert f"{start}, for at most 40 epochs (" in text
    assert f"{start}, with summary pooling, for at most 40 epochs (" in text
    assert f"{start}, for at most 40 epochs, batch size 4, standardized (" in text
    assert "Adapt: train LoRA adapters of rank 8 in all layers." in text
    assert "Adapt: train LoRA adapters of rank 8, alpha 32 and dropout 0.1 in all layers." in text


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        ({"trials": 1}, "in 1 trial, on a random subset."),
        ({"trials": 1, "train_sizes": [8, "all"]}, "in 1 trial, on a random subset or on all examples."),
        ({"trials": 1, "train_sizes": ["all"]}, "in 1 trial, with one seed."),
        ({"trials": 2}, "in 2 trials, each on a random subset."),
        ({"trials": 2, "train_sizes": ["all"]}, "in 2 trials, each with its own seed."),
    ],
)
def test_one_trial_is_not_each(settings, end):
    assert describe_study(a_study(**settings)).endswith(end)
