"""The commands recommend, build and predict: their output and their errors."""

import json
from dataclasses import replace

import pytest
from easy_study import write_csv
from typer.testing import CliRunner

from whichlayers.cli import app
from whichlayers.deploy.choose import _why_nothing
from whichlayers.study.study_file import load_study


def call(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def test_from_results_to_predictions(easy_results, tmp_path):
    study, model = easy_results.folder, tmp_path / "model"
    text = call("recommend", study, "--tolerance", "0.9", "--details")
    assert "signs, 120 examples: recommended" in text
    assert "Use layer 1 of 3" in text
    assert "parameters instead of" in text
    assert f"Build it: whichlayers build {study}" in text.replace("\n", "")
    assert "whichlayers plan" in text
    assert "within the tolerance" in text
    built = call("build", study, "--out", model, "--tolerance", "0.9")
    assert f"wrote {model}" in built
    assert "accuracy" in built
    assert "Do not load it with `AutoModelForSequenceClassification`" in built, "the head is the mean"
    card = (model / "README.md").read_text()
    assert 'pipeline_tag: "feature-extraction"' in card
    assert "Do not load it with" in card
    out = tmp_path / "out.csv"
    file = write_csv(tmp_path / "new.csv", 30, seed=4)
    assert "30 rows" in call("predict", model, file, "--text", "text", "--keep", "id", "--out", out)
    assert len(out.read_text().splitlines()) == 31
    printed = call("predict", model, file, "--text", "text")
    assert printed.splitlines()[0] == "text,prediction,probability,p bad,p good"
    assert len(printed.splitlines()) == 31


def test_json(easy_results):
    found = json.loads(call("recommend", easy_results.folder, "--tolerance", "0.9", "--json"))
    (answer,) = found["answers"]
    assert answer["layers"] == [1]
    assert answer["cost"]["parameters"] < answer["baseline_cost"]["parameters"]
    assert load_study(found["next_study"]).name == "easy-next"


def test_an_edited_next_study_is_kept(easy_results):
    first = easy_results.recommend(goal="features").next_study
    assert easy_results.recommend(goal="features").next_study == first
    edited = first.read_text() + "# my note\n"
    first.write_text(edited)
    second = easy_results.recommend(goal="features").next_study
    assert second != first
    assert first.read_text() == edited
    assert second.read_text() + "# my note\n" == edited


def test_a_loss_in_points_is_an_error(easy_results):
    for tolerance in ("1", "2"):
        text = call("recommend", easy_results.folder, "--tolerance", tolerance, code=2)
        assert f"{tolerance}00 points" in text.replace("\n", " ")


def test_build_without_recommended_features_is_an_error(easy_results, tmp_path):
    text = call("build", easy_results.folder, "--out", tmp_path / "m", "--for", "features", code=2)
    assert "--for features: nothing is recommended" in text


def test_the_next_study_is_accepted_by_plan(easy_results):
    written = easy_results.recommend(goal="features").next_study  # one experiment, which plan times quickly
    assert "trials" in call("plan", written, "--workers", "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "x"], "--layers x: give layers such as 1-8"),
        (["--layers", "1", "--like", "full"], "exclude each other"),
        (["--seeds", "0"], "--seeds 0: give a number"),
        (["--train", "many"], "--train many: give numbers"),
        (["--model", "other"], "--model other: the study has"),
    ],
)
def test_bad_options_of_build(easy_results, tmp_path, options, message):
    output = call("build", easy_results.folder, "--out", tmp_path / "m", *options, code=2)
    assert message in output.replace("\n", " ")


def test_a_model_folder_that_does_not_exist(tmp_path):
    file = write_csv(tmp_path / "new.csv", 3, seed=4)
    for path, problem in ((tmp_path / "nowhere", "the path does not exist"), (file, "the path is a file")):
        text = call("predict", path, file, "--text", "text", code=2).replace("\n", " ")
        assert f"{problem}; give a folder that `whichlayers build` wrote" in text
    assert "has no whichlayers.json: give a folder" in call(
        "predict", tmp_path, file, "--text", "text", code=2
    )


def test_models_have_short_names(easy_results):
    """As in the tables and on the page; `build` takes them."""
    result = easy_results.recommend(tolerance=0.9)
    other = replace(result.answers[0], model="/elsewhere/second", model_fingerprint="other")
    two = replace(result, recommendation=replace(result.recommendation, answers=(*result.answers, other)))
    assert [two.heading(a) for a in two.answers] == [
        "model, signs, 120 examples",
        "second, signs, 120 examples",
    ]
    assert "--out my-model --model model" in str(two)
    assert str(easy_results.folder.parent / "model") not in str(two)


def test_why_nothing_is_recommended_names_the_question(easy_results, tmp_path):
    built = call("build", easy_results.folder, "--out", tmp_path / "m", "--tolerance", "1e-6")
    assert "nothing else is recommended. Smallest model: Not" in built.replace("\n", " ")
    (one,) = easy_results.recommend().answers
    several = [one, replace(one, question="freeze", verdict="nothing to gain")]
    assert _why_nothing(several, "study") == (
        "Smallest model: not enough trials. Layers to freeze: nothing to gain. `whichlayers recommend study` says why."
    )
    assert _why_nothing([], "study") == "The study asked no question that a model answers."
    assert _why_nothing([], "study", "size") == "The study asked no question that --for size answers."


def test_the_report_starts_with_the_recommendation(easy_results):
    page = easy_results.report().read_text()
    assert page.index('id="recommendation"') < page.index('id="setup"')
    assert "Smallest model" in page
    assert "signs, 120 examples" in page
    from whichlayers.analysis.recommend import recommend
    from whichlayers.results.frames import finished, load_points

    (answer,) = recommend(finished(load_points(easy_results.folder))).answers
    assert answer.verdict in page
    assert page.count('<tr><th scope="row" class="text">layer 1 of 3</th>') == 1


def test_an_interrupted_build_says_that_nothing_was_written(easy_results, tmp_path, monkeypatch):
    from whichlayers.deploy import build as build_module

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(build_module, "finetune_seeds", interrupt)
    text = call("build", easy_results.folder, "--out", tmp_path / "m", "--like", "full", code=130)
    assert "interrupted; " in text
    assert "was not written" in text
    assert list(tmp_path.iterdir()) == []
