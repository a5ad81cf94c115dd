"""`build --adapters`: described layers with adapters as the study trained them, of one or several settings."""

import pytest
import torch
from easy_study import easy_study
from safetensors.torch import load_file
from synthetic_results import write_results
from typer.testing import CliRunner

import whichlayers
from whichlayers.cli import app
from whichlayers.deploy.adapter_settings import trial_with_setting
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import StudyFolder
from whichlayers.runs.assets import Assets
from whichlayers.study.expand import expand
from whichlayers.trial import Adapter, Training, Trial

QUERY = ("attention.self.query",)
ALL = ("attention.self.query", "attention.self.value", "output.dense")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A study of LoRA with two ranks, whose scores are made up such that nothing is recommended."""
    root = tmp_path_factory.mktemp("adapters")
    experiments = [
        {"kind": "adapt", "where": ["everywhere", "last"], "k": [1], "rank": [2, 4], "peft_lr": 0.02}
    ]
    training = {"epochs": 1, "max_length": 16, "lr": 5e-3, "dropout": 0.0}
    study = easy_study(root, experiments=experiments, train_sizes=[40], training=training, trials=2)
    scores = {"all pretrained": 0.9}
    folder = write_results(
        root / "study",
        expand(study, Assets(None)),
        lambda p: scores.get(p.condition, 0.6) + 0.01 * p.trial.seed * (1 + p.x),
        depth=3,
        name="easy",
    )
    StudyFolder(folder).write_study(study.to_toml(folder))
    return whichlayers.load(folder)


def call(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "500"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("where", "layers"), [("everywhere", {1, 2, 3}), ("first:2", {1, 2}), ("last:1", {3}), ("2-3", {2, 3})]
)
def test_described_layers_have_adapters(results, tmp_path, where, layers):
    text = call("build", results.folder, "--out", tmp_path / "m", "--adapters", where, "--setting", "rank=4")
    assert "variant: as requested: adapters in layer" in text
    before = load_file(results.folder.parent / "model" / "model.safetensors")
    after = load_file(tmp_path / "m" / "model.safetensors")
    changed = {n.split(".")[2] for n in after if "layer." in n and not torch.equal(before[n], after[n])}
    assert {int(layer) + 1 for layer in changed} == layers
    card = (tmp_path / "m" / "README.md").read_text()
    assert "(LoRA of rank 4, learning rate 0.02)." in card
    assert "recommended" not in card
    assert "Trained: LoRA (rank 4, alpha 16) in layer" in card
    assert 'PeftModel.from_pretrained(AutoModel.from_pretrained("BASE"), "FOLDER/adapter")' in card
    assert "where BASE is the folder of model;" in card
    assert ("The same variant in the study easy" in card) == (where in ("everywhere", "last:1"))


def test_adapters_from_python(results, tmp_path):
    (built,) = results.build(tmp_path / "m", adapters="last:1", settings={"rank": 2, "targets": ALL_NAMES})
    assert built.answer is None
    assert built.trial.adapter.rank == 2
    assert built.trial.training.lr == 0.02


ALL_NAMES = ["query", "key", "value", "dense"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--adapters", "last:1"],
            "the study has several settings of adapters: rank=2; rank=4. Choose one with",
        ),
        (
            ["--adapters", "last:1", "--setting", "rank=3"],
            "--setting rank=3: the study has no such adapters; it has",
        ),
        (
            ["--adapters", "last:1", "--setting", "r=3"],
            "--setting r=3: choose one of the keys method, rank, alpha",
        ),
        (["--adapters", "last:1", "--setting", "rank"], "--setting rank: give KEY=VALUE, such as rank=8"),
        (["--adapters", "last:1", "--setting", "targets=conv"], "the study has no such adapters"),
        (["--adapters", "last:4"], "--adapters last:4: the model has 3 layers; give last:1 to last:3"),
        (["--adapters", "3-4"], "--adapters: there is no layer 4, the model has layers 1 to 3"),
        (["--adapters", "some"], "--adapters some: give everywhere, first:K, last:K or layers such as 5-6"),
        (["--adapters", "1", "--freeze", "2"], "--adapters and --freeze exclude each other"),
        (["--adapters", "1", "--like", "full"], "--like full and --adapters exclude each other"),
        (["--setting", "rank=2"], "--setting: only with --adapters"),
    ],
)
def test_bad_options(results, tmp_path, options, message):
    assert message in call("build", results.folder, "--out", tmp_path / "m", *options, code=2)


def trial(adapter, size=100, **training):
    return Trial("m", "mf", "t", "tf", size, 0, adapter=adapter, training=Training(**training))


def test_settings_are_told_apart_by_method_targets_and_learning_rate():
    """By the trials themselves, whatever their conditions are called."""
    usual = Training(epochs=2)
    lora, query = Adapter("lora", (1,), ALL), Adapter("lora", (1,), QUERY)
    done = [
        trial(lora, lr=1e-3),
        trial(lora, lr=1e-3, size=500),
        trial(query, lr=1e-3),
        trial(Adapter("ia3", (2,), ALL), lr=1e-2),
        trial(None),
    ]
    assert trial_with_setting(done, {"method": "ia3"}, usual) is done[3]
    assert trial_with_setting(done, {"method": "lora", "targets": "query,value,dense"}, usual) is done[1]
    assert trial_with_setting(done, {"targets": "query"}, usual) is done[2]
    assert trial_with_setting(done, {"lr": "0.010"}, usual) is done[3]
    with pytest.raises(
        WhichlayersError, match=r"targets=attention\.self\.query,.*; targets=attention\.self\.query\. "
    ):
        trial_with_setting(done, {"method": "lora"}, usual)
    with pytest.raises(
        WhichlayersError, match=r"method=lora rank=8 .*; method=ia3 targets=.* lr=0\.01\. Choose"
    ):
        trial_with_setting(done, {}, usual)
    with pytest.raises(WhichlayersError, match="--setting lr=high: the study has no such adapters"):
        trial_with_setting(done, {"lr": "high"}, usual)
    with pytest.raises(WhichlayersError, match="no finished trial with adapters; add an experiment"):
        trial_with_setting([trial(None)], {}, usual)
