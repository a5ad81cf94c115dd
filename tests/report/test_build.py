"""The report page: complete, escaped, explicit about missing results, and self-contained."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sqlite3
from html.parser import HTMLParser

import pandas as pd
import pytest
from synthetic_results import incremental, lifelike, localized, permutation, write_results

from whichlayers.errors import WhichlayersError
from whichlayers.plots import chart_data
from whichlayers.report.build import page as page_alone
from whichlayers.report.build import write_report
from whichlayers.report.metadata import _threads, run_details
from whichlayers.report.page import json_for_html
from whichlayers.results.frames import load_runs


class Page(HTMLParser):
    """Text, tags, data and addresses of a page; fails if tags are not properly nested."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.addresses, self.texts, self.inside = [], [], [], [], []
        self.feed(text)
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))
        self.data = json.loads(self.inside[1])

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("style", "script"):
            self.inside.append(data)
        else:
            self.texts.append(data)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    study_points = incremental(("SST-2", "CoLA"), (500, 5000), 4) + localized()
    study_points += permutation(("SST-2", "CoLA"), permutations=5, trials=2)
    folder = write_results(tmp_path_factory.mktemp("full"), study_points, lifelike(6), name="a full study")
    (folder / "study.toml").write_text('name = "a full study"\ndescription = "what layers are for"\n')
    with sqlite3.connect(folder / "results.db") as db:
        note = ["SST-2: train has 10,000 rows, the official one 67,349"]
        db.execute("INSERT INTO meta VALUES ('notes', ?)", (json.dumps(note),))
    page = write_report(folder, overlay=True)
    return folder, Page(page.read_text(encoding="utf-8"))


def test_everything_is_written_and_nothing_is_left_over(full):
    folder, _ = full
    names = ["incremental", "localized", "permutation", "permutation_two_sd", "layers"]
    names += ["layers_block_reinitialized", "layers_block_preserved"]
    files = {f"{name}.{ending}" for name in names for ending in ("png", "svg", "pdf")}
    assert {path.name for path in (folder / "figures").iterdir()} == files | {".written"}
    assert not list(folder.glob("*.partial"))


def test_figures_of_an_earlier_report_are_deleted(tmp_path):
    folder = write_results(tmp_path, incremental(("SST-2",), (500,), 2), lifelike(6))
    write_report(folder)
    figures = folder / "figures"
    (figures / "localized.png").write_bytes(b"of an earlier report")
    (figures / ".written").write_text("localized.png\nincremental.png\n../study.toml\n")
    (figures / "my own.png").write_bytes(b"the user's")
    (folder / "study.toml").write_text("")
    write_report(folder)
    assert (figures / "my own.png").exists()
    assert (figures / "incremental.png").exists()
    assert (folder / "study.toml").exists()
    assert not (figures / "localized.png").exists()


def test_the_page_is_self_contained(full):
    folder, page = full
    assert page.tags.count("script") == 2  # its data and its own
    allowed = ("figures/", "summary.csv", "claims.csv", "#")
    assert [address for address in page.addresses if not address.startswith(allowed)] == []
    assert (folder / "report.html").stat().st_size < 500_000


def test_the_policy_allows_only_the_pages_own_style_and_script(full):
    folder, page = full
    text = (folder / "report.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1].replace("&#39;", "'")
    style, _, script = page.inside
    for kind, inside in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert not re.search(r"<[^>]* (style|on\w+)=", text.partition("<script")[0])


def test_the_charts_have_the_numbers_of_the_summary(full):
    folder, page = full
    table = pd.read_csv(folder / "summary.csv", keep_default_na=False)
    chart = page.data["charts"]["incremental"]
    task, size = [dim["values"] for dim in chart["dims"][:2]]
    for mark in chart["marks"]:
        if mark["kind"] != "line":
            continue
        rows = table[
            (table.experiment == "incremental")
            & (table.task == task[mark["dims"][0]])
            & (table.train_size == int(size[mark["dims"][1]].replace(",", "")))
        ].sort_values("x")
        drawn = pd.DataFrame(mark["rows"], columns=["x", "mean", "low", "high", "sd", "n"])
        for column in drawn:
            assert list(drawn[column]) == pytest.approx(list(rows[column].astype(float)), rel=1e-4)
        assert len(mark["trials"]) == 4 * 7
    assert chart["hidden"] == []  # because of overlay=True
    assert set(page.data["charts"]) == {"incremental", "localized", "permutation", "permutation_two_sd"}
    assert [p["source"][:9] for p in page.data["layers"]] == ["Effect of", "Drop from", "Gain from"]


def test_figures_have_alt_texts(full):
    _, page = full
    alt = page.data["charts"]["incremental"]["panels"][0]["alt"]
    first = page.data["charts"]["incremental"]["marks"][0]["rows"]
    assert alt.startswith("SST-2: accuracy against pretrained layers kept (k). 500 examples: from ")
    assert f"from {100 * first[0][1]:.1f} at 0 to {100 * first[-1][1]:.1f} at 6" in alt
    assert "significantly different from zero" in page.data["layers"][0]["alt"]


def test_the_page_has_the_setup_and_the_runs(full):
    _, page = full
    for text in (
        "a full study",
        "bert-base-uncased (6 layers)",
        "CoLA (Matthews correlation)",
        "500, 5,000",
        "torch 2.13.0",
        "cpu, 2 threads",
        "0123abcd",
        "after 1 h 02 min",
        "1 run, 1 h 02 min in total (wall-clock time of training)",
        "whichlayers claims --all lists what they require",
        'name = "a full study"',
        "what layers are for",
        "SST-2: train has 10,000 rows",
        "all tests of claims in claims.csv",
    ):
        assert text in page.text
    assert "so far" not in page.text
    assert "a-host" not in page.text


@pytest.mark.parametrize(("number", "expected"), [(1, ", 1 thread"), (2, ", 2 threads"), (float("nan"), "")])
def test_one_thread_is_one_thread(number, expected):
    assert _threads(number) == expected


def test_an_unfinished_run_counts_up_to_its_last_finished_trial(tmp_path):
    folder = write_results(tmp_path, incremental(), lifelike(6))
    with sqlite3.connect(folder / "results.db") as db:
        db.execute("UPDATE runs SET finished = NULL, outcome = 'killed'")
        db.execute(
            "INSERT INTO runs SELECT 2, 1.7e9 + 900, 1.7e9 + 1200, 'complete', host, pid, device, threads, "
            "versions, git_commit, command FROM runs"
        )
    text = Page(write_report(folder).read_text(encoding="utf-8")).text
    assert "2 runs, about 6 min 00 s in total" in text  # 300 s, and 60 s until its last trial
    assert "1 unfinished run counted up to the last finished trial" in text


def test_a_run_without_an_outcome_is_running_or_was_killed(full):
    last = load_runs(full[0])
    runs = pd.concat([last, last.assign(outcome="interrupted"), last], ignore_index=True)
    runs["outcome"] = runs["outcome"].mask(runs.index != 1)  # None in results.db, NaN in pandas
    assert [run["outcome"] for run in run_details(runs)] == ["killed", "interrupted", "killed"]
    assert [run["outcome"] for run in run_details(runs, running=True)] == ["killed", "interrupted", "running"]


def test_models_from_a_folder_have_its_name(tmp_path):
    name = "/home/someone/models/mine"
    folder = write_results(tmp_path, incremental(models=(name,)), lifelike(6))
    page = Page(page_alone(folder, description=f"What do the layers of {name} carry over?"))
    assert "What do the layers of mine carry over?" in page.text
    assert "/home/someone" not in page.text


def test_columns_of_every_point_are_named(full):
    folder, _ = full
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert '<th scope="colgroup" colspan="7">pretrained layers kept (k)</th>' in text
    assert '<th scope="colgroup" colspan="5">permutation no.</th>' in text


def test_findings_are_the_statistics(full):
    from whichlayers.analysis.incremental_curves import gains
    from whichlayers.results.frames import finished, load_points

    folder, page = full
    row = gains(finished(load_points(folder))).query("task == 'CoLA' and train_size == 5000").iloc[0]
    assert (
        f"{100 * row.gain:+.1f} points of Matthews correlation (95% interval {100 * row.low:+.1f} to "
        f"{100 * row.high:+.1f}, 4 paired trials)" in page.text
    )
    assert "in all 4 curves" in page.text
    assert "layers permuted:" in page.text
    assert "block re-initialized:" in page.text


def test_summary_has_a_row_for_every_cell(full):
    folder, _ = full
    table = pd.read_csv(folder / "summary.csv", keep_default_na=False)
    expected = [
        "experiment",
        "condition",
        "model",
        "task",
        "train_size",
        "recipe",
        "x",
        "mean",
        "low",
        "high",
        "sd",
        "n",
    ]
    assert list(table.columns[: len(expected)]) == expected
    assert (table.experiment == "incremental").sum() == 2 * 2 * 7
    assert set(table.loc[table.experiment == "incremental", "n"].astype(int)) == {4}
    assert (table.experiment == "localized").sum() == 2 + 2 * 4


def test_an_unfinished_study_states_its_progress_and_failures(tmp_path):
    def score(p):
        if p.x == 1:
            return "<script>alert('loss')</script> & more"
        return None if p.x > 4 else lifelike(6)(p)

    folder = write_results(tmp_path, incremental(), score, name="half <i>done</i>")
    raw = write_report(folder).read_text(encoding="utf-8")
    page = Page(raw)
    assert "12 of 21 trials finished, 3 failed, 6 remaining" in page.text
    assert "so far" in page.text
    assert page.text.count("<script>alert('loss')</script> & more") == 3
    assert page.tags.count("script") == 2
    assert "i" not in page.tags
    assert "no pair of finished trials" in page.text
    assert "Trials per point 3" in page.text  # as planned, independent of what has finished


def test_data_cannot_end_their_script_element():
    wild = {"</script><script>alert(1)</script>": ["<!--", "&amp;", "\u2028"], "n": [1.5, None]}
    text = json_for_html(wild)
    assert json.loads(text) == wild
    assert not set("<>&\u2028") & set(text)
    with pytest.raises(ValueError, match="JSON"):
        json_for_html(float("nan"))


def test_names_from_data_are_never_markup(tmp_path):
    name = "<script>alert(1)</script></script><img src=x onerror=alert(1)>"
    folder = write_results(
        tmp_path, incremental((name,), (500, 900), models=(name, "other")), lifelike(6), name=name
    )
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert name in page.text
    assert page.data["charts"]["incremental"]["panels"][0]["title"] == name


def test_an_undefined_metric_is_excluded_and_reported(tmp_path):
    folder = write_results(tmp_path, incremental(), lifelike(6))
    with sqlite3.connect(folder / "results.db") as db:
        first = db.execute("SELECT id FROM trials").fetchone()
        db.execute("UPDATE epochs SET value = NULL WHERE metric = 'accuracy' AND trial_id = ?", first)
    assert "1 finished trial has no value" in Page(write_report(folder).read_text(encoding="utf-8")).text


@pytest.mark.parametrize("value", [0.5, 1.0])
def test_equal_values_everywhere_are_no_finding(tmp_path, value):
    folder = write_results(tmp_path, incremental(), lambda p: value)
    assert (
        "not significantly different from zero" in Page(write_report(folder).read_text(encoding="utf-8")).text
    )


def test_single_trials_give_no_findings(tmp_path):
    folder = write_results(tmp_path, incremental(trials=1) + localized(trials=1), lifelike(6))
    text = Page(write_report(folder).read_text(encoding="utf-8")).text
    assert "in a single pair of trials, so there is no interval" in text
    assert "One trial per point, so there are no intervals." in text
    assert "95% interval +" not in text
    assert "t interval" not in text
    assert "Hatched" not in text
    assert "±" not in text


def test_the_findings_are_above_the_setup(full):
    _, page = full
    landmarks = ("in all 4 curves (", "Effect of each layer's", "Re-initialization recipe")
    order = [page.text.index(text) for text in landmarks]
    assert order == sorted(order)


def test_the_number_of_steps_is_explained(tmp_path):
    def text_of(name, study_points, score=None):
        folder = write_results(tmp_path / name, study_points, score or lifelike(6))
        return Page(page_alone(folder)).text

    assert "The steps are those of 2 curves, 6 in each." in text_of("two", incremental(("SST-2", "CoLA")))
    one = text_of("one", incremental())
    assert " 6 steps from one k" in one
    assert "steps are those of" not in one
    sparse = text_of("sparse", incremental(ks=(0, 3, 6)))
    assert "of 2 steps" in sparse or "the 2 steps" in sparse
    assert "A step covers several layers where not every k was run." in sparse
    partial = text_of("partial", incremental(), lambda p: lifelike(6)(p) if p.x < 5 else None)
    assert "2 layers without a tested step: too few paired trials, or k not run." in partial


def test_a_study_without_finished_trials_is_an_error_and_writes_nothing(tmp_path):
    folder = write_results(tmp_path, incremental(), lambda p: None)
    with pytest.raises(WhichlayersError, match="no trial has finished"):
        write_report(folder)
    assert {path.name for path in folder.iterdir()} <= {"results.db", "results.db-wal", "results.db-shm"}
    alone = Page(page_alone(folder, live="0"))  # what `watch` shows until the first trial is done
    assert "0 of 21 trials finished" in alone.text
    assert alone.data["charts"] == {}


def test_too_many_trials_for_a_page_are_omitted_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(chart_data, "MAX_TRIALS", 10)
    folder = write_results(tmp_path, incremental(("SST-2",), (500,), 2), lifelike(6))
    page = Page(page_alone(folder))
    assert "Single trials are not shown" in page.text
    assert all(not mark.get("trials") for figure in page.data["charts"].values() for mark in figure["marks"])


def test_the_page_without_files_is_the_same_and_writes_nothing(full, tmp_path):
    folder = write_results(tmp_path, incremental(), lifelike(6))
    before = {path.name for path in folder.iterdir()} | {"results.db-wal", "results.db-shm"}
    alone = Page(page_alone(folder, live="7", description="What do layers carry over?"))
    assert {path.name for path in folder.iterdir()} <= before
    written = Page(write_report(folder).read_text(encoding="utf-8"))
    assert alone.data == written.data
    assert "What do layers carry over?" in alone.text
    assert not any(address.startswith("figures/") for address in alone.addresses)


def test_reads_what_the_real_store_writes(tmp_path):
    from whichlayers.engine.results import EpochRecord, TrialResult
    from whichlayers.results.db import ResultsDB
    from whichlayers.results.records import ModelRow, RunRow, TaskRow

    study_points = incremental(depth=2, recipes=("as_described", "as_released"))
    with ResultsDB.open(tmp_path / "results.db", "from the store") as db:
        tasks = [TaskRow("SST-2-fp", "SST-2", "classification", "accuracy", ("accuracy",), 67349)]
        models = [ModelRow("bert-base-uncased-fp", "bert-base-uncased", None, "bert", 2)]
        db.set_points(study_points, tasks, models)
        run = db.begin_run(RunRow("host", 1, "cpu", 2, {"torch": "2.13.0"}, None, "whichlayers run"))
        values = {p.trial.id: lifelike(2)(p) for p in study_points}
        db.start(list(values), run)
        db.finish(
            TrialResult(
                i, [EpochRecord(e, 0.5, 0.6, {"accuracy": v - 0.1 * (2 - e)}, 1.0) for e in (1, 2)], None, 2.0
            )
            for i, v in values.items()
        )
        db.end_run(run, "finished")
        text = Page(write_report(tmp_path).read_text(encoding="utf-8")).text  # while the store is open
    assert "15 of 15 trials finished" in text
    assert "SST-2, as_released" in text


def test_the_page_has_the_tested_claims_and_table_1(full):
    folder, page = full
    claims = pd.read_csv(folder / "claims.csv")
    assert set(claims.loc[claims.claim == "T3", "claim_verdict"]) == {"not tested"}
    assert (claims.claim == "T1").sum() == 3  # the paper excepts SST-2 with 500 examples from the fourth
    assert "Claims from the papers" in page.text
    assert "Not tested in this study: T2, T3, T5, T6, T7, T9, T10, S1, S2" in page.text
    assert "SST-2, CoLA" in page.text
    assert "0.74 (p=0.02)" in page.text  # published Spearman
    assert "published for BERT-Base: Tamkin et al. 2020" in page.text


def test_further_figures_are_in_the_section_they_belong_to(tmp_path):
    study_points = incremental(ks=(0, 6))
    folder = write_results(tmp_path, study_points, lifelike(6), moved=lambda p, layer: float(layer))
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert (folder / "figures" / "weight_change.png").is_file()
    assert "Weight change" in page.text
    assert "published for BERT-Base" not in page.text  # can be switched on
    assert "Published curves can be switched on." in page.text
    assert page.data["charts"]["incremental"]["hidden"] == ["published: Tamkin et al. 2020"]


# --- guessing ---


def test_results_no_better_than_guessing_are_named(tmp_path):
    lively = lifelike(6)

    def score(point):
        return 0.5 + 0.01 * (point.trial.seed - 1) if point.trial.task == "RTE" else lively(point)

    points = incremental(tasks=("SST-2", "RTE"))
    write_results(tmp_path, points, score, guess={"SST-2": 0.509, "RTE": 0.527})
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "No better than guessing: RTE (500 examples). Claims are not judged on these data." in page.text
    sentence = "500 examples: no better than guessing: 50.0 with all layers pretrained (95% interval 47.5"
    assert page.text.count(sentence) == 1
    assert "3 trials), guessing 52.7." in page.text
    assert "Score of guessing (the most frequent class) RTE 52.7, SST-2 50.9" in page.text
    assert "Classes of the training data RTE: yes 60.0%, no 40.0%; SST-2: yes 60.0%, no 40.0%" in page.text
    assert "The dotted line is guessing" in page.text
    marks = page.data["charts"]["incremental"]["marks"]
    assert [mark["rows"][0][1] for mark in marks if mark["label"] == "guessing"] == [0.509, 0.527]


def test_a_study_whose_guess_is_not_known_says_nothing_about_it(tmp_path):
    write_results(tmp_path, incremental(), lifelike(6), version=1)
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "guessing" not in page.text.lower()
    assert "Classes of the training data" not in page.text
