"""In a notebook: studies and results as HTML, progress as a widget."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_results import incremental, lifelike, trial, write_results

import whichlayers
from whichlayers.runs import events

MARKUP = "<script>alert(1)</script>"


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


def test_results_show_findings_and_means(tmp_path):
    folder = write_results(tmp_path / "a", incremental(("SST-2", MARKUP)), lifelike(6), name=MARKUP)
    results = whichlayers.load(folder)
    found = Tags(results._repr_html_())
    assert "script" not in found.tags
    assert f"{MARKUP}: 42 of 42 trials finished." in found.text
    assert "gain from pretraining" in found.text
    mean = results.summary().query("task == 'SST-2' and x == 6")["mean"].iloc[0]
    assert f"{100 * mean:.1f} ±" in found.text
    assert "by pretrained layers kept (k)" in found.text


def test_results_without_finished_trials_show_their_progress(tmp_path):
    folder = write_results(tmp_path / "a", incremental(), lambda p: None)
    assert "0 of 21 trials finished" in whichlayers.load(folder)._repr_html_()


def test_a_study_shows_what_it_does(tmp_path):
    study = whichlayers.Study(
        name="mine", description=MARKUP, models=["./m"], tasks=["SST-2"], experiments=["incremental"]
    )
    found = Tags(study._repr_html_())
    assert "script" not in found.tags
    assert "keep the first k pretrained layers" in found.text
    assert 'kind = "incremental"' in found.text


def test_progress_is_a_widget(monkeypatch):
    pytest.importorskip("ipywidgets")
    from whichlayers.cli import notebook

    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    with notebook.NotebookProgress() as progress:
        progress(events.RunStarted(Path("x"), 10, 2, 100, 1, 0, ("cpu",)))
        progress(events.Progress(6, 1, 50))
        assert progress.bar.value == 0.5
        assert progress.label.value.startswith("6/10 trials, 1 failed")
        progress(events.TrialFailed(trial(), f"{MARKUP}\ntraceback"))
        progress(events.Note("a note"))
        assert "&lt;script&gt;" in progress.messages.value
        assert "traceback" not in progress.messages.value
        progress(events.Progress(9, 1, 100))
        assert progress.bar.value == 1.0
    assert shown == [progress.box]
    assert progress.bar.bar_style == "success"
    with notebook.NotebookProgress() as finished:
        finished(events.RunStarted(Path("x"), 10, 10, 0, 0, 0, ("cpu",)))
    assert (finished.bar.value, finished.label.value) == (1.0, "10/10 trials")


def test_outside_a_notebook_progress_goes_to_the_terminal():
    from whichlayers.api import _progress_display
    from whichlayers.cli.progress import ProgressDisplay

    assert isinstance(_progress_display(), ProgressDisplay)
