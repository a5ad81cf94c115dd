"""What a study recommends, built end to end: frozen layers, LoRA, learning rate decay, re-initialized layers, features.

The study and its trials are real and so is everything that is trained here; the scores in results.db are made up, so
that every question has a recommendation.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from easy_study import easy_study, texts_and_labels
from safetensors.torch import load_file
from synthetic_results import write_results
from typer.testing import CliRunner

import whichlayers
from whichlayers.analysis.recommend import QUESTIONS
from whichlayers.cli import app
from whichlayers.cli.build import Like
from whichlayers.deploy.choose import RequestedVariant, choose
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import StudyFolder
from whichlayers.runs.assets import Assets
from whichlayers.study.expand import expand
from whichlayers.study.study_file import load_study

EXPERIMENTS = [
    {"kind": "adapt", "where": ["everywhere", "last"], "k": [1], "rank": 2, "peft_lr": 0.02},
    {"kind": "prune", "top": [1]},
    {"kind": "incremental", "keep": [2, 3]},
    {"kind": "lr_decay", "factors": [0.5]},
    {"kind": "freeze", "train": ["top"], "frozen": [1, 2]},
    {"kind": "freeze", "train": ["biases", "norms", "head"], "peft_lr": 0.01},
    {"kind": "adapt", "where": ["single"], "rank": 2, "peft_lr": 0.02},
    {"kind": "probing", "layers": [1, 2, 3]},
]
BETTER = {("incremental", 2), ("lr_decay", 0.5), ("adapt_layers", 2), ("probing", 2)}
CHOICES = {
    "smallest": "layers 1-2 of 3",
    "reinit": "the top layer re-initialized",
    "lr_decay": "a decay of 0.5",
    "freeze": "layers 1-2 and the embeddings frozen",
    "few_parameters": "the biases alone (lr 0.01)",
    "adapters": "adapters in layer 3 (lr 0.02)",
    "adapter_place": "adapters in layer 2 (lr 0.02)",
    "features": "layer 2",
}
TEXTS = [text for text, _ in texts_and_labels(20, seed=5)]
SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from peft import PeftModel
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer
base, texts, found = sys.argv[2], json.loads(sys.argv[3]), {}
for folder in json.loads(sys.argv[1]):
    outputs = SentenceTransformer(folder, device="cpu").encode(texts, convert_to_tensor=True).tolist()
    batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    model = AutoModel.from_pretrained(folder).eval()
    states = [model(**batch).last_hidden_state]
    try:
        adapted = PeftModel.from_pretrained(AutoModel.from_pretrained(base), folder + "/adapter").eval()
        states.append(adapted(**batch).last_hidden_state)
    except ValueError:  # no adapter
        pass
    mask = batch["attention_mask"].bool()
    found[folder] = [outputs, model.config.num_hidden_layers, *(s[mask].tolist() for s in states)]
assert "whichlayers" not in sys.modules
print(json.dumps(found))
"""


def score(point):
    """Scores by which the last candidate of each question is recommended, with a little noise per seed."""
    noise = np.random.default_rng([point.trial.seed, int(10 * point.x), *point.condition.encode()]).normal(
        0, 0.002
    )
    gain = 0.1 * ((point.experiment, point.x) in BETTER) - 0.2 * point.condition.startswith(("norms", "head"))
    return 0.8 + gain + noise


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("recommended")
    training = {"epochs": 1, "max_length": 16, "lr": 5e-3, "dropout": 0.0}
    study = easy_study(root, experiments=EXPERIMENTS, train_sizes=[40], training=training)
    folder = write_results(root / "study", expand(study, Assets(None)), score, depth=3, name="easy")
    StudyFolder(folder).write_study(study.to_toml(folder))
    return whichlayers.load(folder)


@pytest.fixture(scope="module")
def built(results, tmp_path_factory):
    """The model that is built for each question."""
    out = tmp_path_factory.mktemp("built")
    return {question: results.build(out / question, question=question)[0] for question in CHOICES}


@pytest.fixture(scope="module")
def loaded(results, built):
    """What other libraries compute with each folder, in a new process."""
    folders = {str(model.folder): question for question, model in built.items()}
    arguments = [json.dumps(list(folders)), str(results.folder.parent / "model"), json.dumps(TEXTS)]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return {folders[name]: v for name, v in json.loads(process.stdout.splitlines()[-1]).items()}


def test_every_question_can_be_built():
    assert set(CHOICES) == set(QUESTIONS)
    assert {like.value for like in Like} == {"recommended", "full", *QUESTIONS}


@pytest.mark.parametrize("question", CHOICES)
def test_the_recommended_variant_is_built(results, built, question):
    (answer,) = results.recommend().recommendation.of(question)
    assert (answer.verdict, answer.choice) == ("recommended", CHOICES[question])
    assert built[question].answer == answer
    assert answer.text in (built[question].folder / "README.md").read_text()


@pytest.mark.parametrize("question", [q for q in CHOICES if q != "features"])
def test_each_model_is_built_with_its_own_learning_rate(built, question):
    lr = {"adapters": 0.02, "adapter_place": 0.02, "few_parameters": 0.01}.get(question, 5e-3)
    assert built[question].trial.training.lr == lr
    assert f"learning rate {lr:g}" in (built[question].folder / "README.md").read_text()


@pytest.mark.parametrize("question", [q for q in CHOICES if q != "features"])
def test_other_libraries_compute_the_same_logits(built, loaded, question):
    outputs, depth, *_ = loaded[question]
    ours = whichlayers.load_model(built[question].folder).logits(TEXTS)
    np.testing.assert_allclose(outputs, ours, atol=1e-5)
    assert np.ptp(ours, axis=0).max() > 0.01  # texts differ
    assert depth == (2 if question == "smallest" else 3)


def test_recommended_features_are_those_of_the_layer(results, built, loaded):
    from transformers import AutoModel, AutoTokenizer

    outputs, depth, _ = loaded["features"]
    batch = AutoTokenizer.from_pretrained(built["features"].folder)([TEXTS[0]], return_tensors="pt")
    base = AutoModel.from_pretrained(results.folder.parent / "model").eval()
    with torch.no_grad():
        states = base(**batch, output_hidden_states=True).hidden_states[2][0]
    np.testing.assert_allclose(outputs[0], states.mean(0), atol=1e-5)
    assert depth == 2


def changed_layers(results, model):
    """The layers whose weights differ from the pretrained ones; 0 is the embeddings."""
    before = load_file(results.folder.parent / "model" / "model.safetensors")
    after = load_file(model.folder / "model.safetensors")
    changed = set()
    for name, values in before.items():
        if name in after and not torch.equal(values, after[name]) and "pooler" not in name:
            changed.add(int(name.split(".")[2]) + 1 if name.startswith("encoder.layer") else 0)
    return changed


@pytest.mark.parametrize(
    ("question", "layers"),
    [
        ("freeze", {3}),
        ("adapters", {3}),
        ("adapter_place", {2}),
        ("reinit", {0, 1, 2, 3}),
        ("lr_decay", {0, 1, 2, 3}),
    ],
)
def test_only_what_is_recommended_is_trained(results, built, question, layers):
    assert changed_layers(results, built[question]) == layers


def test_only_biases_are_trained(results, built):
    before = load_file(results.folder.parent / "model" / "model.safetensors")
    after = load_file(built["few_parameters"].folder / "model.safetensors")
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    biases = {name for name in after if name.endswith("bias") and "pooler" not in name}
    # all keys of a query get the bias of the keys alike, which softmax ignores
    assert {name for name in biases if "key.bias" not in name} <= changed <= biases
    card = (built["few_parameters"].folder / "README.md").read_text()
    assert "Trained: the biases and the head; everything else was frozen" in card


@pytest.mark.parametrize(("question", "layer"), [("adapters", 3), ("adapter_place", 2)])
def test_peft_computes_the_same_hidden_states(built, loaded, question, layer):
    _, _, merged, adapted = loaded[question]
    np.testing.assert_allclose(adapted, merged, atol=1e-5)
    card = (built[question].folder / "README.md").read_text()
    assert f"Trained: LoRA (rank 2, alpha 16) in layer {layer} (" in card


def test_the_cards_say_what_is_special(built):
    def card(question):
        return (built[question].folder / "README.md").read_text()

    assert "Frozen: layers 1-2 and the embeddings" in card("freeze")
    assert "Re-initialized before finetuning: layer 3" in card("reinit")
    assert "Learning rate by layer: from 0.12 times the learning rate in the embeddings" in card("lr_decay")


def call(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "500"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return " ".join(result.output.split())


def test_the_command_to_build_has_the_options_of_the_recommendation(results):
    text = call("recommend", results.folder, "--tolerance", "0.02")
    likes = (
        "--like reinit, --like lr_decay, --like freeze, --like few_parameters, --like adapters, "
        "--like adapter_place or --like features"
    )
    assert f"whichlayers build {results.folder} --out my-model --tolerance 0.02 (or with {likes})" in text
    text = call("recommend", results.folder, "--for", "features")
    assert f"whichlayers build {results.folder} --out my-model --for features" in text


def test_the_full_model_has_the_training_settings_of_the_study(results):
    """Not those of a single experiment, such as the learning rate of adapters."""
    folder = StudyFolder(results.folder)
    choice = choose(folder, load_study(folder.study_file), Assets(None), RequestedVariant(full=True))
    assert choice.trial.training.lr == 5e-3


def test_a_model_or_task_of_several_is_chosen_by_name(results):
    folder, assets = StudyFolder(results.folder), Assets(None)
    study = load_study(folder.study_file)
    first = study.tasks[0]
    swapped = {"name": "more signs", "train": first.dev, "dev": first.train}
    tasks = [first, first.model_copy(update=swapped)]
    two = study.model_copy(update={"tasks": tuple(tasks)})
    with pytest.raises(WhichlayersError, match="several tasks: give --task with one of signs, more signs"):
        choose(folder, two, assets, RequestedVariant(full=True))
    assert (
        choose(folder, two, assets, RequestedVariant(full=True), task="more signs", model="model").trial.task
        == "more signs"
    )
    with pytest.raises(WhichlayersError, match="--model mode: the study has no such model"):
        choose(folder, two, assets, RequestedVariant(full=True), task="signs", model="mode")


def test_each_goal_has_its_recommendation(results):
    by_goal = {goal: results.recommend(goal=goal).recommendation for goal in ("size", "speed", "accuracy")}
    best = {goal: found.best(found.answers).question for goal, found in by_goal.items()}
    assert (best["size"], best["speed"]) == ("smallest", "smallest")
    assert best["accuracy"] in ("reinit", "lr_decay")


def test_what_is_not_recommended_cannot_be_built_by_question(results, tmp_path):
    with pytest.raises(WhichlayersError, match=r"--like freeze: nothing is recommended\. Not enough trials"):
        results.build(tmp_path / "m", question="freeze", tolerance=1e-6)
    with pytest.raises(WhichlayersError, match="--like size: choose one of recommended, full, smallest"):
        results.build(tmp_path / "m", question="size")
    text = call("build", results.folder, "--out", tmp_path / "m", "--like", "freeze", "--for", "size", code=2)
    assert "--like freeze and --for size exclude each other" in text


def test_a_recommended_model_predicts_from_the_command_line(built, tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("text\n" + "".join(f"{text}\n" for text in TEXTS))
    folder = built["adapters"].folder
    lines = call("predict", folder, file, "--text", "text", "--out", tmp_path / "out.jsonl")
    assert "20 rows" in lines
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = whichlayers.load_model(folder).predict_proba(TEXTS)
    np.testing.assert_allclose([[r["p bad"], r["p good"]] for r in rows], expected, atol=1e-5)
