"""A study of words from end to end on a small random model: before and after finetuning, killed and gone on with."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_subject import write_model

from whichlayers.data.corpora import load_corpus
from whichlayers.probes import regularization
from whichlayers.probes import word_probe as asking
from whichlayers.results.db import Store
from whichlayers.results.export import points_frame
from whichlayers.results.folder import StudyFolder
from whichlayers.results.frames import finished, load_epochs, load_points
from whichlayers.runs import run_study
from whichlayers.runs.assets import Subjects
from whichlayers.runs.estimate import foresee
from whichlayers.runs.finetuned_models import file_of, keep_only, load, save
from whichlayers.runs.plan import Stack, cut, make_stacks, models_in, total_steps, words_key
from whichlayers.runs.resources import choose_means
from whichlayers.runs.status import disk_use
from whichlayers.runs.word_trials import Finetuned, _shelf_of
from whichlayers.study.file import Study
from whichlayers.trial import Trial, WordProbe

RUN = """
import sys, torch
from pathlib import Path
from whichlayers.runs.run_study import run
from whichlayers.study.file import load_study
torch.set_num_threads(1)
import whichlayers.runs.word_trials as word_stack, os, signal
asked = word_stack._ask_all
def kill(model, *rest):  # like kill -9, when the questions of a finetuned model begin
    if model.finetuning is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    asked(model, *rest)
if sys.argv[3] == "killed":
    word_stack._ask_all = kill
else:
    word_stack._finetune = None  # it must not be called again
run(load_study(sys.argv[1]), Path(sys.argv[2]), device="cpu", workers=0)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    corpus = load_corpus("builtin:pos")
    words = {w for split in (corpus.train, corpus.test) for s in split.sentences for w in s.words}
    return write_model(tmp_path_factory.mktemp("model"), sorted(words))


def study_of(model: Path, **changes) -> Study:
    small = {"train_words": 400, "test_words": 200}
    settings = {
        "name": "words",
        "trials": 2,
        "train_sizes": [16],
        "models": [str(model)],
        "tasks": ["builtin:sentiment"],
        "corpora": [{"name": "builtin:pos", **small}, {"name": "builtin:chunk", **small}],
        "experiments": [
            {"kind": "word_probing"},
            {"kind": "neurons", "shares": [0.25], "l1": 1e-3, "l2": 1e-3, "probe_epochs": 2},
            {
                "kind": "selectivity",
                "shares": [0.25],
                "l1": 1e-3,
                "l2": 1e-3,
                "finetuned_on": [],
                "probe_epochs": 2,
            },
        ],
        "training": {"epochs": 1, "lr": 1e-3, "max_length": 32},
    }
    return Study(**(settings | changes))


@pytest.fixture(scope="module")
def ran(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ran") / "study"
    summary = run_study.run(study_of(model), folder, device="cpu", workers=0)
    assert (summary.failed, summary.done) == (0, summary.trials)
    return folder


def test_all_questions_are_answered_before_and_after(ran):
    points = finished(load_points(ran))
    assert points["value"].notna().all()
    assert set(points["task"]) == {"builtin:pos", "builtin:chunk"}
    assert set(points["finetuned_on"]) == {"", "sentiment"}
    layers = points[points["experiment"] == "word_probing"].pivot_table(
        index=["task", "seed", "x"], columns="finetuned_on", values="value"
    )
    assert len(layers) == 2 * 2 * 3
    assert layers.iloc[:, 0].between(0.05, 1).all()
    assert (layers.iloc[:, 0] != layers.iloc[:, 1]).mean() > 0.5  # another model answers
    spread = points[points["experiment"] == "neuron_spread"]
    sums = spread.groupby(["task", "seed", "condition"])["value"].sum()
    assert np.allclose(sums, 1.0)
    chosen = points[points["experiment"] == "selectivity"]
    assert set(chosen["metric"]) == {"selectivity"}
    assert chosen["control"].between(0, 1).all()


def test_answers_carry_what_belongs_to_them(ran):
    epochs = load_epochs(ran)
    metrics = epochs.groupby("metric")["value"].count()
    points = load_points(ran).drop_duplicates("trial_id")
    assert metrics["majority_accuracy"] == len(points)
    assert (
        metrics["task_accuracy"] == (points["finetuned_on"] != "").sum()
    )  # how the finetuned model itself does
    assert metrics["task_accuracy"] > 0


def test_the_table_for_other_programs_says_what_a_model_was_finetuned_on(ran):
    frame = points_frame(StudyFolder(ran))
    assert set(frame["finetuned_on"]) == {"", "sentiment"}
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    part = page.partition("The columns of `frame()`")[2].partition("\n`epochs()`")[0]
    described = {name for row in re.findall(r"^\| (`.*?) \|", part, re.MULTILINE) for name in row.split("`")}
    assert set(frame.columns) <= described


def test_penalties_are_searched_for_once_a_corpus_in_the_pretrained_model(model, tmp_path, monkeypatch):
    searches = []
    real = regularization.search_lambdas

    def counted(train, *args, **options):
        searches.append(train)
        return real(train, *args, **options)

    monkeypatch.setattr(regularization, "search_lambdas", counted)
    asked = {"kind": "neurons", "shares": [0.25], "smallest": False, "probe_epochs": 1}
    for experiments in ([asked | {"pretrained": False}], [asked]):  # finetuned models first, then the rest
        run_study.run(study_of(model, experiments=experiments), tmp_path / "study", device="cpu", workers=0)
    assert len(searches) == 2
    (tmp_path / "moved").mkdir()
    for name in ("results.db", "study.toml"):
        shutil.copy(tmp_path / "study" / name, tmp_path / "moved" / name)
    more = [asked, {"kind": "selectivity", "finetuned_on": [], "probe_epochs": 1}]
    run_study.run(study_of(model, experiments=more), tmp_path / "moved", device="cpu", workers=0)
    assert len(searches) == 2, "results.db alone says what was found"
    frame = points_frame(StudyFolder(tmp_path / "study"))
    frame = frame[frame["experiment"] == "neurons"]
    assert set(frame["finetuned_on"]) == {"", "sentiment"}
    assert (frame.groupby("task")[["l1", "l2"]].nunique() == 1).all(axis=None)
    studied = {tuple(train.flat[0, :5].tolist()) for train in searches}
    run_study.run(study_of(model, experiments=[asked]), tmp_path / "again", device="cpu", workers=0)
    assert studied == {tuple(train.flat[0, :5].tolist()) for train in searches[2:]}, "as it was pretrained"


@pytest.mark.parametrize("searched", [False, True])
def test_the_disk_it_takes_meanwhile_is_what_plan_says(model, tmp_path, monkeypatch, searched):
    """`searched`: L1 and L2 for a finetuned model, which reads the words with the pretrained one, too."""
    lambdas = {} if searched else {"l1": 1e-3, "l2": 1e-3}
    ranked = {"kind": "neurons", "smallest": False, "probe_epochs": 1, "pretrained": not searched, **lambdas}
    words = {"builtin:pos": 400, "builtin:chunk": 300}
    corpora = [{"name": name, "train_words": n, "test_words": 50} for name, n in words.items()]
    study = study_of(model, corpora=corpora, experiments=[ranked])
    vectors, models = [0], [0]
    real = asking.ask

    def watched(*given, **options):
        for outcomes in real(*given, **options):
            vectors.append(sum(file.stat().st_size for file in (tmp_path / "study").rglob("*.npy")))
            models.append(sum(file.stat().st_size for file in (tmp_path / "study" / "encoders").rglob("*")))
            yield outcomes

    monkeypatch.setattr(asking, "ask", watched)
    means = choose_means(["cpu"], workers=0, max_stack=None)
    told = foresee(study, tmp_path / "study", means, (), False, False, contextlib.nullcontext, Subjects).disk
    run_study.run(study, tmp_path / "study", device="cpu", workers=0)
    assert told.vectors == pytest.approx(max(vectors), rel=0.02)
    assert told.encoders == pytest.approx(max(models), rel=0.1)
    assert told.checkpoints > told.encoders


def test_what_asks_the_pretrained_model_saves_no_model(model, tmp_path):
    study = study_of(model, tasks=[], experiments=["word_probing"])
    means = choose_means(["cpu"], workers=0, max_stack=None)
    disk = foresee(study, tmp_path, means, (), False, False, contextlib.nullcontext, Subjects).disk
    assert (disk.checkpoints, disk.encoders) == (0, 0)
    assert disk.vectors > 0


def test_studies_that_share_a_cache_keep_their_vectors_apart(tmp_path):
    subjects = SimpleNamespace(catalogue=SimpleNamespace(cache=tmp_path), aligned={})

    def folder_of(study: str, model: Finetuned) -> Path:
        setup = SimpleNamespace(device="cpu", encoders=tmp_path / study / "encoders")
        with _shelf_of(model, trial, SimpleNamespace(setup=setup, subjects=subjects)) as shelf:
            return shelf.folder

    trial = Trial("m", "mf", "t", "tf", 10, 0, word_probe=WordProbe("c", "cf"))
    asked = [("one", None), ("two", None), ("one", trial.finetuning)]
    folders = {folder_of(study, Finetuned(finetuning)) for study, finetuning in asked}
    assert len(folders) == 3
    assert folder_of("one", Finetuned(None)) in folders, "a run that goes on finds what the last one left"


def test_nothing_is_left_on_the_disk_but_results(ran):
    assert not (ran / "encoders").exists()
    assert not list((ran / "cache").rglob("*.npy"))
    assert "results.db" in disk_use(ran)


def test_a_question_has_one_answer_whatever_is_asked_beside_it(model, ran, tmp_path):
    """One seed and one corpus alone, in a worker process, against the whole study."""
    alone = study_of(model, trials=1, experiments=["word_probing"])
    alone = Study(**(alone.settings() | {"corpora": alone.corpora[:1]}))
    run_study.run(alone, tmp_path / "alone", device="cpu", workers=1)
    few, many = (finished(load_points(f)).set_index("trial_id")["value"] for f in (tmp_path / "alone", ran))
    few = few[~few.index.duplicated()]
    both = many[~many.index.duplicated()].loc[few.index]
    assert len(few) == 2 * 3
    assert (
        few - both
    ).abs().max() <= 2 / 200  # finetuned in a stack of one and of two: equal but for rounding


def test_kill_9_costs_no_finetuning(model, ran, tmp_path):
    file, folder = tmp_path / "study.toml", tmp_path / "study"
    file.write_text(study_of(model).to_toml())
    killed = _drive(file, folder, "killed")
    assert killed.returncode == -9
    saved = sorted((folder / "encoders").glob("*.safetensors"))
    assert len(saved) == 2
    with Store.read(folder / "results.db") as store:
        before = store.ids("done")
        assert {t.train_size for t in store.trials("done")} == {0}  # of the pretrained model all are answered
    assert disk_use(folder)["encoders"] > 0
    again = _drive(file, folder, "again")
    assert again.returncode == 0, again.stderr
    assert not (folder / "encoders").exists()
    with Store.read(folder / "results.db") as store:
        counts = store.counts()
        assert counts.done == counts.total
        assert before < store.ids("done")
    whole, resumed = (finished(load_points(f)).set_index(["trial_id", "x"])["value"] for f in (ran, folder))
    assert (whole.sort_index() - resumed.sort_index()).abs().max() == 0


def _drive(file: Path, folder: Path, *further: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, str(file), str(folder), *further],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_corpus_that_fails_does_not_take_the_others_with_it(model, tmp_path, monkeypatch):
    import whichlayers.probes.word_probe as ask_module

    asked = ask_module.ask

    def breaks(trials, *rest, **named):
        if trials[0].word_probe.corpus == "builtin:chunk":
            raise RuntimeError("no luck")
        return asked(trials, *rest, **named)

    monkeypatch.setattr(ask_module, "ask", breaks)
    study = study_of(model, experiments=[{"kind": "word_probing", "finetuned_on": []}])
    summary = run_study.run(study, tmp_path / "study", device="cpu", workers=0)
    assert (summary.done, summary.failed) == (6, 6)
    with Store.read(tmp_path / "study" / "results.db") as store:
        assert all("no luck" in failure.error for failure in store.failures())


def test_what_was_answered_before_a_failure_is_kept(model, tmp_path, monkeypatch):
    from whichlayers.probes.probing_dataset import Ranked

    def breaks(self, trials):
        raise RuntimeError("no luck")

    monkeypatch.setattr(Ranked, "selectivity", breaks)
    given = {"finetuned_on": [], "corpora": ["builtin:pos"], "shares": [0.25], "l1": 1e-3, "l2": 1e-3}
    neurons = {"kind": "neurons", "smallest": False, "spread": False, "probe_epochs": 1, **given}
    selective = {"kind": "selectivity", "description_length": False, "probe_epochs": 1, **given}
    study = study_of(model, experiments=[neurons, selective], trials=1)
    summary = run_study.run(study, tmp_path / "study", device="cpu", workers=0)
    with Store.read(tmp_path / "study" / "results.db") as store:
        done, failed = store.trials("done"), store.trials("failed")
        assert all("no luck" in failure.error for failure in store.failures())
    assert {trial.word_probe.measure for trial in failed} == {"selectivity"}
    assert {trial.word_probe.neurons for trial in done} == {"all", "top", "bottom", "random"}
    assert (summary.done, summary.failed) == (len(done), len(failed))
    monkeypatch.undo()
    again = run_study.run(study, tmp_path / "study", device="cpu", workers=0, retry_failed=True)
    assert (again.done, again.failed) == (len(done) + len(failed), 0)


# --- plan ---


def trials_of(seeds=range(3), size=16):
    plain = Trial("m", "mf", "t" if size else "", "tf" if size else "", size, 0)
    return [
        Trial(**{**vars_of(plain), "seed": s, "words": WordProbe("c", f"c{c}", neurons="layer", layer=k)})
        for s in seeds
        for c in range(2)
        for k in range(3)
    ]


def vars_of(trial):
    names = ("model", "model_fingerprint", "task", "task_fingerprint", "train_size", "seed")
    return {name: getattr(trial, name) for name in names}


def test_a_probe_that_diverges_is_a_failed_trial():
    from whichlayers.probes.word_probe import _outcome
    from whichlayers.trial import Trial, WordProbe

    trial = Trial("m", "m", "", "", 0, 0, word_probe=WordProbe("c", "c", lr=1e9))
    failed = _outcome(trial, {"accuracy": float("nan"), "neurons_used": 3.0}, {}, 1.0)
    assert "a probe diverged; try a smaller probe_lr (now 1e+09)" in failed.error
    assert failed.epochs == []
    assert _outcome(trial, {"accuracy": 0.5}, {}, 1.0).error is None


def test_all_questions_of_a_model_stay_together():
    after, before = trials_of(), trials_of(size=0)
    assert (models_in(after), models_in(before)) == (3, 1)
    stacks = make_stacks([*before, *after], words_key, 2)
    assert sorted(stack.models for stack in stacks) == [1, 1, 2]
    for stack in stacks:
        assert len(stack.trials) == 6 * stack.models or stack.trials[0].train_size == 0
    assert [len(piece) for piece in cut(after, 1)] == [6, 6, 6]
    assert total_steps(after) == sum(stack.steps for stack in stacks) - total_steps(before)
    assert total_steps(after) - 18 * 20 == 3 * after[0].steps


# --- models on the disk ---


def test_saved_models_are_whole_or_not_there(tmp_path):
    import torch

    trial = Trial("m", "mf", "t", "tf", 16, 0)
    assert load(None, trial) is None
    assert load(tmp_path, trial) is None
    save(tmp_path, trial, {"w": torch.ones(3)}, {"metrics": {"task_accuracy": 0.5}, "seconds": 1.0})
    weights, facts = load(tmp_path, trial)
    assert weights["w"].tolist() == [1.0, 1.0, 1.0]
    assert facts["metrics"] == {"task_accuracy": 0.5}
    file = file_of(tmp_path, trial)
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    assert load(tmp_path, trial) is None
    file.write_bytes(whole)
    wanted = Stack(0, tuple(trials_of(seeds=[0])))
    keep_only(tmp_path, [wanted])
    assert not file.exists() or wanted.trials[0].finetuning.id == trial.id
    keep_only(tmp_path / "nowhere", [wanted])
