"""Metadata of tasks and corpora: classes, the score of guessing, truncated texts."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import numpy as np
import pytest
from small_study import small_study, write_model

import whichlayers
from whichlayers.data.corpora import load_corpus
from whichlayers.data.load_task import load_task
from whichlayers.results.db import ResultsDB
from whichlayers.results.frames import load_points, load_study_summary
from whichlayers.runs.assets import Assets
from whichlayers.study.expand import expand


@pytest.fixture
def study(tmp_path):
    training = {"epochs": 1, "max_length": 9, "lr": 1e-3}
    return small_study(tmp_path, experiments=["probing"], training=training, trials=1)


def test_tasks_and_corpora_have_class_counts_and_the_score_of_guessing(tmp_path):
    study = small_study(tmp_path, experiments=["word_probing"], corpora=["builtin:pos"])
    task, corpus = load_task("builtin:sentiment"), load_corpus("builtin:pos")
    (row,), (tags,) = Assets(None).task_rows(study.tasks), Assets(None).corpus_rows(study.corpora)
    counts = Counter(task.label_names[label] for label in task.train.labels)
    assert row.class_counts == counts
    most = task.label_names.index(max(task.label_names, key=counts.__getitem__))
    assert row.guess_scores == {"accuracy": np.mean(task.evals[""].labels == most)}
    counts = Counter(tag for sentence in corpus.train.sentences for tag in sentence.tags)
    assert tags.class_counts == counts
    test = [tag for sentence in corpus.test.sentences for tag in sentence.tags]
    expected = test.count(counts.most_common(1)[0][0]) / len(test)
    assert tags.guess_scores == {"accuracy": pytest.approx(expected)}


def test_truncated_texts_are_noted_for_the_plan_and_the_report(study, tmp_path):
    assets = Assets(None)
    trials = [point.trial for point in expand(study, assets)]
    assert assets.truncated(trials) == {}  # nothing is tokenized yet
    assets.check(trials)
    task, tokenizer = load_task("builtin:sentiment"), assets.tokenizer(trials[0])
    texts = [*task.train.texts, *task.evals[""].texts]
    count = sum(len(ids) > 9 for ids in tokenizer(texts)["input_ids"])
    (note,) = assets.truncated(trials).values()
    assert 0 < count < len(texts)
    assert note.startswith(
        f"sentiment: {count:,} of 2,400 training and dev examples ({100 * count / 2400:.3g}%) are longer"
        " than max_length = 9 tokens and truncated ("
    )
    for _ in range(2):  # the second run has nothing to read
        whichlayers.run(study, tmp_path / "study", device="cpu", workers=0, progress=False)
        with closing(ResultsDB.open_readonly(tmp_path / "study" / "results.db")) as db:
            assert note in db.notes()
    guess = load_points(tmp_path / "study")["guess"]
    (summary,) = load_study_summary(tmp_path / "study").tasks
    assert set(guess) == {summary.guess} == {Assets(None).task_info(study.tasks[0]).guess_scores["accuracy"]}
    assert sum(summary.class_counts.values()) == summary.train_rows


@pytest.mark.parametrize(("limit", "kept"), [(1e9, 2), (1e3, 1)])
def test_large_models_are_not_kept_while_another_is_loaded(tmp_path, monkeypatch, limit, kept):
    monkeypatch.setattr("whichlayers.runs.assets.MAX_KEPT_BYTES", limit)
    folders = [
        str(write_model(tmp_path / name, words, layers=1)) for name, words in (("a", "xy"), ("b", "z"))
    ]
    study = small_study(tmp_path, experiments=[{"kind": "incremental", "keep": [0]}], trials=1)
    study = study.override(models=folders)
    assets = Assets(None)
    trials = {point.trial.model: point.trial for point in expand(study, assets)}
    encoders = [assets.encoder(trials[folder]) for folder in folders]
    assert [encoder.num_parameters() for encoder in encoders] == sorted(
        (encoder.num_parameters() for encoder in encoders), reverse=True
    )
    assert assets.encoder(trials[folders[1]]) is encoders[1]
    assert (assets.encoder(trials[folders[0]]) is encoders[0]) == (kept == 2)
