"""Common mistakes on the command line: the message names what was given and says what to do instead."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path

import fakes
import pytest
from synthetic_results import incremental, lifelike, write_results
from typer.testing import CliRunner

from whichlayers.analysis.power import PowerEstimate
from whichlayers.cli import app
from whichlayers.cli.format import describe_trial
from whichlayers.cli.options import check_not_replaced
from whichlayers.cli.power import _format_cost
from whichlayers.cli.show import _print_epochs, describe_adapter, describe_changes
from whichlayers.deploy.predict import check_output
from whichlayers.errors import WhichlayersError
from whichlayers.experiments import display_of
from whichlayers.experiments.lr_decay import LrDecay
from whichlayers.experiments.prune import Prune
from whichlayers.results.lock import study_lock
from whichlayers.results.schema import adapter_json
from whichlayers.runs import assets, run_study
from whichlayers.study.expand import expand
from whichlayers.study.study_file import Study
from whichlayers.text import outer_layers
from whichlayers.trial import Adapter, Point, Probe, Surgery


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("WHICHLAYERS_DEBUG", raising=False)
    monkeypatch.setattr(assets, "Assets", lambda cache: fakes.FakeAssets())


def call(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def test_new_says_how_the_task_is_named():
    Path("reviews").mkdir()
    for split in ("train", "dev"):
        Path(f"reviews/{split}.csv").write_text("text,label\nfine,yes\ndull,no\n")
    files = ("--train", "reviews/train.csv", "--dev", "reviews/dev.csv", "--text", "text", "--label", "label")
    assert "the task is named reviews" in call("new", "g.toml", *files).output


def test_new_adds_the_extension_and_suggests_what_works():
    assert "whichlayers plan g.toml, whichlayers run g.toml" in call("new", "g").output
    assert Path("g.toml").is_file()
    assert not Path("g").exists()
    assert "did you mean g.toml?" in call("plan", "g", code=2).stderr
    assert "choose g.toml" in call("new", "g.yaml", code=2).stderr


def test_a_data_file_is_no_study_file():
    Path("train.csv").write_text("id,text,label\n1,fine,yes\n")
    error = call("run", "train.csv", code=2).stderr
    assert "train.csv is a data file, not a study file" in error
    command = "whichlayers new my-study.toml --train train.csv --dev FILE --text COLUMN --label COLUMN"
    assert f"{command} (columns of train.csv: id, text, label)" in error
    Path("empty.jsonl.gz").write_text("")
    assert "is a data file" in call("plan", "empty.jsonl.gz", code=2).stderr
    Path("noext").write_text('name = "x"\n')
    error = call("plan", "noext", code=2).stderr
    assert "noext is not a study file, which ends in .toml; if it is one, rename it to noext.toml" in error


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./nope", "model './nope': the path does not exist"),
        ("folder", "has no config.json, so it is not a model folder"),
        ("package:no-such-package", "package 'no-such-package' is not installed"),
        ("two words", "neither an existing folder nor a valid hub id"),
    ],
)
def test_new_checks_the_model(model, message):
    Path("folder").mkdir()
    assert message in call("new", "g.toml", "--model", model, code=2).stderr
    assert not Path("g.toml").exists()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mixtral", "num_local_experts": 4}, "it is a mixture of experts"),
        (
            {"model_type": "t5", "is_encoder_decoder": True},
            "'t5') is not supported: it is an encoder-decoder",
        ),
        (
            {"model_type": "llama", "quantization_config": {"quant_method": "gptq"}},
            "its checkpoint is quantized (gptq)",
        ),
        ({"model_type": "no-such-family"}, "model_type 'no-such-family' is not supported"),
        ("not a dictionary", "must contain a JSON object"),
    ],
)
def test_new_says_at_once_that_a_model_is_not_supported(config, reason):
    """From config.json alone: the weights are not read."""
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(config))
    Path("m/model.safetensors").write_bytes(b"not weights")
    error = call("new", "g.toml", "--model", "./m", code=2).stderr
    assert "model './m'" in error
    assert reason in error
    assert not Path("g.toml").exists()


def test_new_accepts_hub_ids_without_looking_them_up():
    call("new", "g.toml", "--model", "some-org/some-model")


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("t.csv", "", "t.csv is empty; expected a header line with the columns 'a' and 'b'"),
        ("t.tsv", "\n\n", "t.tsv is empty; expected a header line"),
        ("t.csv", "a,b\n", "t.csv has no examples; expected a header line"),
        (
            "t.jsonl",
            "",
            "t.jsonl is empty; expected one JSON object per line, each with the keys 'a' and 'b'",
        ),
        ("t.parquet", "", "t.parquet is empty; expected a table with the columns 'a' and 'b'"),
    ],
)
def test_an_empty_data_file_is_named_with_what_is_expected(file, content, expected):
    Path(file).write_text(content)
    Path("dev.csv").write_text("a,b\nfine,yes\n")
    own = ("--train", file, "--dev", "dev.csv", "--text", "a", "--label", "b")
    assert expected in call("new", "g.toml", *own, code=2).stderr


def test_plan_names_finished_trials_of_other_settings(monkeypatch):
    real = functools.partial(run_study.run, handlers=fakes.HANDLERS, assets=fakes.FakeAssets())
    fixed = {"workers": 0, "device": "cpu"}
    monkeypatch.setattr(run_study, "run", lambda *args, **given: real(*args, **(given | fixed)))
    Path("mine.toml").write_text(fakes.make_study(name="mine").to_toml())
    plan = ("plan", "mine.toml", "--no-measure", "--device", "cpu")
    assert "done" not in call(*plan).output
    call("run", "mine.toml", "--quiet")
    same = call(*plan).output
    assert "15 of 15 trials are done in mine" in same
    assert "other settings" not in same
    other = call(*plan, "--set", "training.lr=1e-3").output
    assert "0 of 15 trials are done in mine" in other
    assert "mine also holds 15 finished trials of other settings" in other


def test_compare_labels_studies_of_one_name_by_their_folders():
    for place, shift in (("monday", 0.0), ("friday", 0.02)):
        write_results(
            Path(place) / "rev",
            incremental(trials=3),
            lambda p, s=shift: lifelike(6)(p) + s * (1 + p.trial.seed),
            name="rev",
        )
    output = call("compare", "monday/rev", "friday/rev").output
    assert "A: monday/rev\nB: friday/rev\ndifferences are B minus A" in output
    assert "friday/rev is significantly higher in" in " ".join(output.split())
    assert "+4.0" in output
    assert " to +" in output  # the bounds of a signed difference have signs
    assert "are the same folder" in call("compare", "monday/rev", "monday/rev", code=2).stderr


def test_compare_does_not_break_names_of_curves():
    study = fakes.make_study(name="mine")
    pruned = type(study)(**(study.settings() | {"experiments": [{"kind": "prune", "top": [1, 2]}]}))
    for folder in ("one", "two"):
        run_study.run(
            pruned, folder, handlers=fakes.HANDLERS, assets=fakes.FakeAssets(), workers=0, device="cpu"
        )
    lines = call("compare", "one", "two").output.splitlines()
    for name in ("all pretrained", "top layers dropped"):
        assert any(name in line for line in lines)


def test_studies_without_pairs_say_what_to_do():
    write_results(Path("one"), incremental(trials=1), lifelike(6))
    other = [p for p in incremental(trials=2) if p.trial.seed == 1]
    write_results(Path("two"), other, lifelike(6), name="other")
    error = call("compare", "one", "two", code=2).stderr
    assert "have no pair of trials" in error
    assert "Run both studies with the same tasks and data, experiments, train_sizes and seed" in error


def test_show_says_which_time_is_which_and_between_which_layers_changes_are():
    points = list(incremental(trials=1))
    write_results(Path("s"), points, lifelike(6), moved=lambda p, layer: 0.5 + 0.1 * (layer == 3))
    text = call("show", "s", points[-1].trial.id).output
    assert "(time of its stack, divided by the number of its trials)" in " ".join(text.split())
    assert "(layers 1 to 6) smallest 0.5 in layer 1, largest 0.6 in layer 3" in text
    assert "; commit " in text
    one = [{"layer": 1, "frobenius": 0.587}]
    assert describe_changes(one) == "▁ 0.587 in layer 1"
    assert describe_changes([*one, {"layer": 2, "frobenius": 0.587}]).endswith("0.587 in each layer")


def test_show_has_the_settings_of_probes_and_adapters():
    """A linear probe has its own learning rate and epochs, not those of finetuning."""
    probe = Probe(layer=2, pooling="summary", lr=0.01)
    probed = dataclasses.replace(next(iter(incremental())).trial, surgery=Surgery(), probe=probe)
    write_results(Path("s"), [Point("probing", "pooling summary", 2, probed)], lifelike(6))
    text = " ".join(call("show", "s", probed.id).output.split())
    assert "probe layer 2, pooling summary, max_epochs 40, " in text
    assert "lr 0.01," in text
    assert "training batch_size" not in text
    adapter = Adapter("lora", (5, 6), ("attention.query", "output.dense"))
    assert describe_adapter(json.loads(adapter_json(adapter))) == (
        "lora in layers 5 and 6, alpha 16.0, dropout 0.0, rank 8, targets attention.query and output.dense"
    )
    ia3 = dataclasses.replace(adapter, method="ia3", layers=(1,), targets=("output.dense",))
    assert describe_adapter(json.loads(adapter_json(ia3))) == "ia3 in layer 1, targets output.dense"


def test_show_never_cuts_a_number_off(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    scores = dict.fromkeys(("accuracy", "f1", "macro_f1", "mcc"), 0.5)
    _print_epochs([{"epoch": 1, **scores, "train_loss": 0.25, "dev_loss": 0.5, "seconds": 75.2}])
    header, row = capsys.readouterr().out.splitlines()[1:3]
    assert header.split()[-1] == "seconds"
    assert row.split() == ["1", "50.0", "50.0", "50.0", "50.0", "0.250", "0.500", "75.2"]


def test_predict_does_not_replace_files_unasked(tmp_path):
    texts, out = tmp_path / "new.csv", tmp_path / "out.csv"
    for file in (texts, out):
        file.write_text("text\nfine\n")
    error = call("predict", "model", "new.csv", "--text", "text", "--out", "out.csv", code=2).stderr
    assert "--out out.csv already exists; choose another name, or replace it with --overwrite" in error
    check_not_replaced("--out", out, overwrite=True)
    check_output(out, texts)
    with pytest.raises(WhichlayersError, match="is the file of the texts"):
        check_output(texts, texts)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("export", "one", "--out"), "mine.csv"),
        (("export", "one", "--out"), "mine.parquet"),
        (("compare", "one", "two", "--out"), "mine.html"),
        (("claims", "one", "--figure"), "mine.png"),
    ],
)
def test_files_are_not_replaced_unasked(tmp_path, command, name):
    for study in ("one", "two"):
        write_results(tmp_path / study, incremental(sizes=(500, 5000)), lifelike())
    (tmp_path / name).write_text("mine")
    error = call(*command, name, code=2).stderr
    assert (
        f"{command[-1]} {name} already exists; choose another name, or replace it with --overwrite" in error
    )
    assert (tmp_path / name).read_text() == "mine"
    call(*command, name, "--overwrite")
    assert (tmp_path / name).read_bytes() != b"mine"
    call(*command, f"new-{name}")
    assert (tmp_path / f"new-{name}").is_file()


def test_files_with_default_names_are_replaced(tmp_path):
    for study in ("one", "two"):
        write_results(tmp_path / study, incremental(sizes=(500, 5000)), lifelike())
    for _ in range(2):
        assert "wrote one/results.csv" in call("export", "one").output
        assert "wrote compare.html" in call("compare", "one", "two").output
    assert json.loads(call("compare", "one", "two", "--out", "compare.html", "--json").output)
    call("export", "one", "--out", "/dev/null", "--format", "csv")  # not a file


def test_the_results_are_never_replaced_by_their_export(tmp_path):
    write_results(tmp_path / "one", incremental(), lifelike())
    before = (tmp_path / "one" / "results.db").read_bytes()
    arguments = ("--out", "one/results.db", "--format", "csv", "--overwrite")
    assert "one/results.db has the results of the study" in call("export", "one", *arguments, code=2).stderr
    assert (tmp_path / "one" / "results.db").read_bytes() == before


def pruning(trials):
    """Points of a pruning experiment of a model with six layers."""
    settings = fakes.make_study().settings() | {
        "experiments": [{"kind": "prune", "top": [1, 2]}],
        "trials": trials,
    }
    return expand(Study(**settings), fakes.FakeAssets())


def test_recommend_says_that_the_study_runs_and_whether_its_trials_are_enough():
    points = [*incremental(trials=4), *pruning(4)]
    folder = write_results(Path("s"), points, lambda p: lifelike(6)(p) if p.experiment != "prune" else None)
    with study_lock(folder):
        output = " ".join(call("recommend", "s").output.split())
        data = json.loads(call("recommend", "s", "--json").output)
    assert re.search(r"28 of 40 trials are done, and are (not )?enough for .* The study is running\.", output)
    assert "Smallest model" not in output  # no answer yet
    assert "smallest model" not in output  # but asked: not among what the study did not ask
    assert "Run more trials" not in output
    assert (data["trials"], data["trials_done"], data["running"]) == (40, 28, True)
    assert "smallest" not in [question["question"] for question in data["not_asked"]]
    output = " ".join(call("recommend", "s").output.split())
    assert "The study is not complete; resume it with: whichlayers run s." in output


def test_commands_name_a_run_that_has_no_results_yet():
    Path("empty").mkdir()
    write_results(Path("pending"), incremental(trials=2), lambda p: None)
    with study_lock(Path("empty")), study_lock(Path("pending")):
        assert "is running" in (error := call("recommend", "empty", code=2).stderr)
        assert "has no results yet" in error
        error = call("recommend", "pending", code=2).stderr
        assert "the study in pending is running, and none of its 14 trials is done" in error
    assert "run it with `whichlayers run`" in call("recommend", "pending", code=2).stderr


def test_the_baseline_of_frozen_models_has_one_name():
    assert display_of("freeze").condition_name("all pretrained") == "all parameters trained"
    assert display_of("prune").condition_name("all pretrained") == "all pretrained"
    trial = fakes.make_trial()
    assert describe_trial(trial).endswith("(all pretrained)")
    frozen = dataclasses.replace(
        trial, training=dataclasses.replace(trial.training, lr_factors=((1, 0.0), (2, 0.0)))
    )
    assert describe_trial(frozen).endswith("(frozen 1-2)")


@pytest.mark.parametrize(
    ("end", "count", "text"), [("top", 1, "the top layer"), ("highest", 3, "the highest 3 layers")]
)
def test_one_layer_is_singular(end, count, text):
    assert outer_layers(end, count) == text
    decay = LrDecay(kind="lr_decay", reinit_top=[0, count]).summary()
    assert f"with no layer or {outer_layers('highest', count)} re-initialized" in decay
    assert Prune(kind="prune", top=[count]).summary() == f"drop {outer_layers('top', count)}"


def test_a_folder_whose_run_failed_at_once_names_the_command_that_runs_it():
    Path("failed").mkdir()
    Path("failed/study.toml").write_text(fakes.make_study(name="failed").to_toml())
    assert "run the study (whichlayers run failed)" in call("report", "failed", code=2).stderr


def test_claims_without_data_are_counted_as_not_tested():
    write_results(Path("s"), incremental(trials=3), lifelike(6))
    assert "of the papers are not tested on this study (" in " ".join(call("claims", "s").output.split())


def test_claims_that_are_not_judged_are_listed_with_the_reason():
    points = incremental(trials=3)
    guess = {point.trial.task: 0.5 for point in points}
    moved = lambda point, layer: 0.1 * layer + 0.001 * point.trial.seed  # noqa: E731
    write_results(
        Path("s"), points, lambda point: 0.5 + 0.01 * (point.trial.seed - 1), moved=moved, guess=guess
    )
    table, _, counted = call("claims", "s").output.partition("claims of the papers are not tested")
    assert re.search(r"^ ?S1 +not tested", table, re.MULTILINE)
    assert "not judged on" in table
    assert "S1" not in counted


def test_power_does_not_call_unknown_costs_zero():
    noisy = PowerEstimate(("incremental",), "k = 2 against 1", 0.0, 5.0, 3, None, 2.0)
    assert _format_cost(noisy, 2.0) == "over 1,994"
    assert _format_cost(dataclasses.replace(noisy, n=1), 2.0) == "?"
    assert _format_cost(dataclasses.replace(noisy, needed=5), 2.0, digits=1) == "4.0"
