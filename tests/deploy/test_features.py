"""`build --for features`: the hidden states that the probes of the study read, pooled as they were."""

import numpy as np
import pytest
import torch
from easy_study import easy_study
from sentence_transformers import SentenceTransformer
from synthetic_results import write_results
from tiny_tokenizers import TEXTS, tiny_tokenizer
from transformers import AutoModel, AutoTokenizer, LlamaConfig, LlamaModel
from typer.testing import CliRunner

import whichlayers
from whichlayers.cli import app
from whichlayers.deploy.save import save_features
from whichlayers.deploy.text_model import Metadata
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import StudyFolder
from whichlayers.runs.assets import Assets
from whichlayers.study.expand import expand

SEEDS = 8
# made-up scores by pooling and layer: layer 2 is best, the last layer is best, layer 2 is best
SCORES = {"mean": {2: 0.7}, "summary": {3: 0.9}, "pooler": {2: 0.8}}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A study of probes with three poolings."""
    root = tmp_path_factory.mktemp("features")
    experiments = [{"kind": "probing", "layers": [1, 2, 3], "pooling": list(SCORES)}]
    study = easy_study(root, experiments=experiments, train_sizes=[40], trials=SEEDS)

    def score(point):
        noise = np.random.default_rng([point.trial.seed, int(point.x)]).normal(0, 0.003)
        return SCORES[point.trial.probe.pooling].get(point.trial.probe.layer, 0.6) + noise

    folder = write_results(root / "study", expand(study, Assets(None)), score, depth=3, name="easy")
    StudyFolder(folder).write_study(study.to_toml(folder))
    return whichlayers.load(folder)


def call(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "500"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return " ".join(result.output.split())


def pooled(results, layer, pooling):
    """The features of two texts of the task, computed by transformers."""
    folder = results.folder.parent / "model"
    base = AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in ("w1 w2 fine", "poor w3"):
        with torch.no_grad():
            batch = AutoTokenizer.from_pretrained(folder)([text], return_tensors="pt")
            hidden = base(**batch, output_hidden_states=True).hidden_states[layer]
            features = {
                "mean": lambda h: h.mean(1),
                "summary": lambda h: h[:, 0],
                "pooler": base.pooler,
            }
            rows.append(features[pooling](hidden))
    return torch.cat(rows).numpy()


@pytest.mark.parametrize(("pooling", "layer"), [("mean", 2), ("summary", 3), ("pooler", 2)])
def test_features_are_pooled_as_in_the_study(results, tmp_path, pooling, layer):
    options = ("--for", "features", "--setting", f"pooling={pooling}")
    text = call("build", results.folder, "--out", tmp_path / "m", *options)
    found = SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(["w1 w2 fine", "poor w3"])
    np.testing.assert_allclose(found, pooled(results, layer, pooling), atol=1e-5)
    assert ("layer 2, recommended by the study" if layer == 2 else "no other layer are better") in text
    means = {
        "mean": "the mean of",
        "summary": "[CLS]-like token",
        "pooler": "the output of the pretrained pooler",
    }
    assert means[pooling] in (tmp_path / "m" / "README.md").read_text()


def test_features_from_python(results, tmp_path):
    settings = {"pooling": "pooler", "standardize": False, "lr": 1e-3}
    (built,) = results.build(tmp_path / "m", goal="features", settings=settings)
    assert (built.trial.probe.pooling, built.trial.probe.layer) == ("pooler", 2)
    (same,) = results.build(tmp_path / "same", question="features", settings=settings)
    assert same.trial == built.trial
    with pytest.raises(WhichlayersError, match="--like features: the study has several settings of probes"):
        results.build(tmp_path / "none", question="features")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--for", "features"],
            "--for features: the study has several settings of probes: pooling=mean; pooling=summary; pooling=pooler. "
            "Choose one with --setting KEY=VALUE",
        ),
        (
            ["--for", "features", "--setting", "pooling=max"],
            "--setting pooling=max: the study has no such probes; it has pooling=mean; pooling=summary",
        ),
        (
            ["--for", "features", "--setting", "rank=8"],
            "--setting rank=8: choose one of the keys pooling, max_",
        ),
        (["--for", "size", "--setting", "pooling=mean"], "--setting: only with --adapters, which says"),
        (
            ["--like", "features", "--setting", "pooling=summary"],
            "--like features: nothing is recommended. Nothing to gain: use the hidden states of the last layer (3)",
        ),
    ],
)
def test_bad_options(results, tmp_path, options, message):
    assert message in call("build", results.folder, "--out", tmp_path / "m", *options, code=2)


def test_recommend_prints_the_setting(results):
    text = call("recommend", results.folder, "--for", "features")
    command = f"whichlayers build {results.folder} --out my-model --for features --setting pooling=mean"
    assert f"Build it: {command} (or with --setting pooling=pooler)" in text


def test_answers_of_several_poolings_have_the_scores_that_tell_which_is_better(results):
    mean, summary, pooler = (a.text for a in results.recommend(goal="features").answers)
    assert mean.endswith("Mean score: 70.0 at layer 2 and 59.9 at the last layer (3).")
    assert summary.endswith("Mean score: 89.9 at the last layer (3).")
    assert pooler.endswith("Mean score: 80.0 at layer 2 and 59.9 at the last layer (3).")


def test_features_of_a_decoder_are_those_of_the_last_token(tmp_path):
    tokenizer = tiny_tokenizer("byte-level", bos=True)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaModel(LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=1, **size)).eval()
    with torch.no_grad():
        expected = [
            model(**tokenizer([text], return_tensors="pt")).last_hidden_state[0, -1].numpy()
            for text in TEXTS[:3]
        ]
    about = {"kind": "classification", "labels": (), "max_length": 64, "pairs": False, "task": "t"}
    about |= {"base_model": "m", "layers": (1, 2), "depth": 2, "version": "0", "details": {}}
    save_features(tmp_path, model, tokenizer, Metadata(layout="features", head="last", **about), "summary")
    found = SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS[:3])
    np.testing.assert_allclose(found, expected, atol=1e-5)
