"""Word probes end to end on a small random model: before and after finetuning, killed and resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from small_study import write_model

import whichlayers
from whichlayers.data.corpora import load_corpus
from whichlayers.probes import lambda_search
from whichlayers.probes import run_word_probes as word_probe_module
from whichlayers.report.neuron_tables import overlap_table
from whichlayers.results.db import ResultsDB
from whichlayers.results.export import points_frame
from whichlayers.results.folder import StudyFolder
from whichlayers.results.frames import finished, load_epochs, load_points, load_top_neurons
from whichlayers.runs import machine, run_study
from whichlayers.runs.assets import Assets
from whichlayers.runs.disk import disk_use
from whichlayers.runs.estimate import estimate_study
from whichlayers.runs.handlers import HANDLERS, WorkerContext
from whichlayers.runs.handlers.finetuned_models import (
    delete_unused,
    load_finetuned,
    model_path,
    save_finetuned,
)
from whichlayers.runs.handlers.word_probe import ProbedModel, _activation_store
from whichlayers.runs.plan import (
    Stack,
    count_models,
    make_stacks,
    memory_key,
    models_to_keep,
    split_trials,
    stack_key_fn,
    total_steps,
)
from whichlayers.runs.resources import choose_resources
from whichlayers.study.study_file import Study
from whichlayers.trial import Trial, WordProbe

RUN = """
import sys
from pathlib import Path
from whichlayers.runs.run_study import run
from whichlayers.study.study_file import load_study
from whichlayers.runs import machine
machine.usable_cores = lambda: 1  # one thread
import whichlayers.runs.handlers.word_probe as word_probe, os, signal
probe_model = word_probe._probe_model
def kill(model, *rest):  # kill -9 before a finetuned model is probed
    if model.finetuning is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    probe_model(model, *rest)
if sys.argv[3] == "killed":
    word_probe._probe_model = kill
else:
    word_probe._finetune = None  # it must not be called again
run(load_study(sys.argv[1]), Path(sys.argv[2]), device="cpu", workers=0)
"""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """With several threads, such a small model would take minutes on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "usable_cores", lambda: 1)
        yield


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


def test_all_word_probes_are_run_before_and_after_finetuning(ran):
    points = finished(load_points(ran))
    assert points["value"].notna().all()
    assert set(points["task"]) == {"builtin:pos", "builtin:chunk"}
    assert set(points["finetuned_on"]) == {"", "sentiment"}
    layers = points[points["experiment"] == "word_probing"].pivot_table(
        index=["task", "seed", "x"], columns="finetuned_on", values="value"
    )
    assert len(layers) == 2 * 2 * 3
    assert layers.iloc[:, 0].between(0.05, 1).all()
    assert (layers.iloc[:, 0] != layers.iloc[:, 1]).mean() > 0.5  # from another model
    spread = points[points["experiment"] == "neuron_spread"]
    sums = spread.groupby(["task", "seed", "condition"])["value"].sum()
    assert np.allclose(sums, 1.0)
    chosen = points[points["experiment"] == "selectivity"]
    assert set(chosen["metric"]) == {"selectivity"}
    assert chosen["control"].between(0, 1).all()


def test_results_include_baselines_and_task_metrics(ran):
    epochs = load_epochs(ran)
    metrics = epochs.groupby("metric")["value"].count()
    points = load_points(ran).drop_duplicates("trial_id")
    assert metrics["majority_accuracy"] == len(points)
    assert metrics["task_accuracy"] == (points["finetuned_on"] != "").sum()  # of the finetuned model itself
    assert metrics["task_accuracy"] > 0


def test_the_exported_table_has_the_task_of_the_finetuned_model(ran):
    frame = points_frame(StudyFolder(ran))
    assert set(frame["finetuned_on"]) == {"", "sentiment"}
    page = (Path(__file__).parents[3] / "docs" / "results.md").read_text(encoding="utf-8")
    part = page.partition("The columns of `frame()`")[2].partition("\n`epochs()`")[0]
    described = {name for row in re.findall(r"^\| (`.*?) \|", part, re.MULTILINE) for name in row.split("`")}
    assert set(frame.columns) <= described


def test_penalties_are_searched_once_per_corpus_with_the_pretrained_model(model, tmp_path, monkeypatch):
    searches = []
    real = lambda_search.search_lambdas

    def counted(train, *args, **options):
        searches.append(train)
        return real(train, *args, **options)

    monkeypatch.setattr(lambda_search, "search_lambdas", counted)
    neurons = {"kind": "neurons", "shares": [0.25], "smallest": False, "probe_epochs": 1}
    for experiments in ([neurons | {"pretrained": False}], [neurons]):  # finetuned models first
        run_study.run(study_of(model, experiments=experiments), tmp_path / "study", device="cpu", workers=0)
    assert len(searches) == 2
    (tmp_path / "moved").mkdir()
    for name in ("results.db", "study.toml"):
        shutil.copy(tmp_path / "study" / name, tmp_path / "moved" / name)
    more = [neurons, {"kind": "selectivity", "finetuned_on": [], "probe_epochs": 1}]
    run_study.run(study_of(model, experiments=more), tmp_path / "moved", device="cpu", workers=0)
    assert len(searches) == 2, "results.db alone contains the penalties"
    frame = points_frame(StudyFolder(tmp_path / "study"))
    frame = frame[frame["experiment"] == "neurons"]
    assert set(frame["finetuned_on"]) == {"", "sentiment"}
    assert (frame.groupby("task")[["l1", "l2"]].nunique() == 1).all(axis=None)
    searched = {tuple(train.flat[0, :5].tolist()) for train in searches}
    run_study.run(study_of(model, experiments=[neurons]), tmp_path / "again", device="cpu", workers=0)
    assert searched == {tuple(train.flat[0, :5].tolist()) for train in searches[2:]}, "the pretrained model"


def test_top_neurons_are_stored_exported_and_compared(ran):
    results = whichlayers.load(ran)
    neurons, points = results.top_neurons(), load_points(ran)
    assert set(neurons["set"]) == {"top", "smallest"}
    by_trial = neurons[neurons["set"] == "top"].groupby("trial_id")
    assert (by_trial["rank"].apply(list).map(lambda ranks: ranks == list(range(1, len(ranks) + 1)))).all()
    sets = points[(points["experiment"] == "neurons") & (points["neurons"] == "top")]
    assert set(sets["trial_id"]) == set(by_trial.groups)
    spread = points[points["experiment"] == "neuron_spread"]
    for trial in sets.itertuples():  # the spread of the same ranking counts the same neurons
        same = spread[(spread["task"] == trial.task) & (spread["seed"] == trial.seed)]
        same = same[same["finetuned_on"] == trial.finetuned_on].set_index("x")["value"]
        layers = by_trial.get_group(trial.trial_id)["layer"].value_counts(normalize=True)
        assert layers.to_dict() == pytest.approx({x: v for x, v in same.items() if v})
    assert not by_trial.get_group(sets["trial_id"].iloc[0])[["layer", "neuron"]].duplicated().any()
    overlaps = results.neuron_overlap()
    assert set(overlaps["comparison"]) == {"seeds", "finetuning"}
    assert overlaps["mean"].between(0, 1).all()
    one = sets[(sets["task"] == "builtin:pos") & (sets["finetuned_on"] == "")]["trial_id"]
    first, second = (set(map(tuple, by_trial.get_group(t)[["layer", "neuron"]].to_numpy())) for t in one)
    seeds = overlaps[(overlaps["task"] == "builtin:pos") & (overlaps["comparison"] == "seeds")]
    assert seeds["mean"].iloc[0] == pytest.approx(len(first & second) / len(first))
    table = overlap_table(load_top_neurons(ran))
    assert {row["finetuned on"] for row in table.rows} == {"pretrained", "sentiment"}
    assert {row["random"] for row in table.rows} == {"25.0"}
    assert f"<h3>{table.label}</h3>" in results.report().read_text(encoding="utf-8")
    assert len(pd.read_csv(ran / "neuron_overlap.csv")) == len(overlaps)


@pytest.mark.parametrize("searched", [False, True])
def test_the_disk_space_while_running_is_as_estimated(model, tmp_path, monkeypatch, searched):
    """`searched`: search L1 and L2 for a finetuned model, which needs the activations of the pretrained one."""
    lambdas = {} if searched else {"l1": 1e-3, "l2": 1e-3}
    ranked = {"kind": "neurons", "smallest": False, "probe_epochs": 1, "pretrained": not searched, **lambdas}
    words = {"builtin:pos": 400, "builtin:chunk": 300}
    corpora = [{"name": name, "train_words": n, "test_words": 50} for name, n in words.items()]
    study = study_of(model, corpora=corpora, experiments=[ranked])
    activations, models = [0], [0]
    real = word_probe_module.run_word_probes

    def recorded(*args, **options):
        for results in real(*args, **options):
            activations.append(sum(file.stat().st_size for file in (tmp_path / "study").rglob("*.npy")))
            models.append(sum(file.stat().st_size for file in (tmp_path / "study" / "encoders").rglob("*")))
            yield results

    monkeypatch.setattr(word_probe_module, "run_word_probes", recorded)
    resources = choose_resources(["cpu"], workers=0, max_stack=None)
    disk = estimate_study(
        study, tmp_path / "study", resources, (), False, False, contextlib.nullcontext, Assets
    ).disk
    run_study.run(study, tmp_path / "study", device="cpu", workers=0)
    assert disk.activations == pytest.approx(max(activations), rel=0.02)
    assert disk.finetuned_models == pytest.approx(max(models), rel=0.1)
    assert disk.checkpoints > disk.finetuned_models


def test_probes_of_the_pretrained_model_save_no_model(model, tmp_path):
    study = study_of(model, tasks=[], experiments=["word_probing"])
    resources = choose_resources(["cpu"], workers=0, max_stack=None)
    disk = estimate_study(study, tmp_path, resources, (), False, False, contextlib.nullcontext, Assets).disk
    assert (disk.checkpoints, disk.finetuned_models) == (0, 0)
    assert disk.activations > 0


def test_studies_that_share_a_cache_have_separate_activations(tmp_path):
    assets = SimpleNamespace(index=SimpleNamespace(cache=tmp_path), alignments={})

    def folder_of(study: str, model: ProbedModel) -> Path:
        worker = WorkerContext("cpu", 1, lambda: assets, tmp_path / study / "encoders")
        with _activation_store(model, trial, worker) as store:
            return store.folder

    trial = Trial("m", "mf", "t", "tf", 10, 0, word_probe=WordProbe("c", "cf"))
    models = [("one", None), ("two", None), ("one", trial.finetuning)]
    folders = {folder_of(study, ProbedModel(finetuning)) for study, finetuning in models}
    assert len(folders) == 3
    assert folder_of("one", ProbedModel(None)) in folders, "a resumed run uses the same folder"


def test_only_results_are_left_on_disk(ran):
    assert not (ran / "encoders").exists()
    assert not list((ran / "cache").rglob("*.npy"))
    assert "results.db" in disk_use(ran)


def test_a_result_does_not_depend_on_the_other_probes(model, ran, tmp_path):
    """Compares one seed and one corpus alone, in a worker process, with the whole study."""
    alone = study_of(model, trials=1, experiments=["word_probing"])
    alone = Study(**(alone.settings() | {"corpora": alone.corpora[:1]}))
    run_study.run(alone, tmp_path / "alone", device="cpu", workers=1)
    few, many = (finished(load_points(f)).set_index("trial_id")["value"] for f in (tmp_path / "alone", ran))
    few = few[~few.index.duplicated()]
    both = many[~many.index.duplicated()].loc[few.index]
    assert len(few) == 2 * 3
    assert (few - both).abs().max() <= 2 / 200  # finetuned in a stack of one and of two: equal up to rounding


def test_kill_9_loses_no_finetuned_model(model, ran, tmp_path):
    file, folder = tmp_path / "study.toml", tmp_path / "study"
    file.write_text(study_of(model).to_toml())
    killed = _run(file, folder, "killed")
    assert killed.returncode == -9
    saved = sorted((folder / "encoders").glob("*.safetensors"))
    assert len(saved) == 2
    with ResultsDB.open_readonly(folder / "results.db") as db:
        before = db.trial_ids("done")
        assert {t.train_size for t in db.trials("done")} == {0}  # all probes of the pretrained model
    assert disk_use(folder)["encoders"] > 0
    again = _run(file, folder, "again")
    assert again.returncode == 0, again.stderr
    assert not (folder / "encoders").exists()
    with ResultsDB.open_readonly(folder / "results.db") as db:
        counts = db.counts()
        assert counts.done == counts.total
        assert before < db.trial_ids("done")
    whole, resumed = (finished(load_points(f)).set_index(["trial_id", "x"])["value"] for f in (ran, folder))
    assert (whole.sort_index() - resumed.sort_index()).abs().max() == 0


def _run(file: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, str(file), str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_error_on_one_corpus_does_not_affect_the_others(model, tmp_path, monkeypatch):
    real = word_probe_module.run_word_probes

    def fail(trials, *rest, **options):
        if trials[0].word_probe.corpus == "builtin:chunk":
            raise RuntimeError("no luck")
        return real(trials, *rest, **options)

    monkeypatch.setattr(word_probe_module, "run_word_probes", fail)
    study = study_of(model, experiments=[{"kind": "word_probing", "finetuned_on": []}])
    summary = run_study.run(study, tmp_path / "study", device="cpu", workers=0)
    assert (summary.done, summary.failed) == (6, 6)
    with ResultsDB.open_readonly(tmp_path / "study" / "results.db") as db:
        assert all("no luck" in failure.error for failure in db.failures())


def test_results_before_a_failure_are_kept(model, tmp_path, monkeypatch):
    from whichlayers.probes.probing_dataset import RankedNeurons

    def fail(self, trials, on_progress=None):
        raise RuntimeError("no luck")

    monkeypatch.setattr(RankedNeurons, "selectivity", fail)
    common = {"finetuned_on": [], "corpora": ["builtin:pos"], "shares": [0.25], "l1": 1e-3, "l2": 1e-3}
    neurons = {"kind": "neurons", "smallest": False, "spread": False, "probe_epochs": 1, **common}
    selective = {"kind": "selectivity", "description_length": False, "probe_epochs": 1, **common}
    study = study_of(model, experiments=[neurons, selective], trials=1)
    summary = run_study.run(study, tmp_path / "study", device="cpu", workers=0)
    with ResultsDB.open_readonly(tmp_path / "study" / "results.db") as db:
        done, failed = db.trials("done"), db.trials("failed")
        assert all("no luck" in failure.error for failure in db.failures())
    assert {trial.word_probe.measure for trial in failed} == {"selectivity"}
    assert {trial.word_probe.neurons for trial in done} == {"all", "top", "bottom", "random"}
    assert (summary.done, summary.failed) == (len(done), len(failed))
    monkeypatch.undo()
    again = run_study.run(study, tmp_path / "study", device="cpu", workers=0, retry_failed=True)
    assert (again.done, again.failed) == (len(done) + len(failed), 0)


# --- plan ---


def trials_of(seeds=range(3), size=16):
    default = Trial("m", "mf", "t" if size else "", "tf" if size else "", size, 0)
    return [
        Trial(
            **{**vars_of(default), "seed": s, "word_probe": WordProbe("c", f"c{c}", neurons="layer", layer=k)}
        )
        for s in seeds
        for c in range(2)
        for k in range(3)
    ]


def vars_of(trial):
    names = ("model", "model_fingerprint", "task", "task_fingerprint", "train_size", "seed")
    return {name: getattr(trial, name) for name in names}


def test_a_probe_that_diverges_is_a_failed_trial():
    from whichlayers.probes.run_word_probes import _trial_result
    from whichlayers.trial import Trial, WordProbe

    trial = Trial("m", "m", "", "", 0, 0, word_probe=WordProbe("c", "c", lr=1e9))
    failed = _trial_result(trial, {"accuracy": float("nan"), "neurons_used": 3.0}, None, {}, 1.0)
    assert "a probe diverged; try a smaller probe_lr (now 1e+09)" in failed.error
    assert failed.epochs == []
    assert _trial_result(trial, {"accuracy": 0.5}, None, {}, 1.0).error is None


def test_all_probes_of_a_model_stay_together():
    after, before = trials_of(), trials_of(size=0)
    assert (count_models(after), count_models(before)) == (3, 1)
    stacks = make_stacks([*before, *after], stack_key_fn(HANDLERS, Assets(None)), 2)
    assert sorted(stack.models for stack in stacks) == [1, 1, 2]
    for stack in stacks:
        assert len(stack.trials) == 6 * stack.models or stack.trials[0].train_size == 0
    assert [len(part) for part in split_trials(after, 1)] == [6, 6, 6]
    assert total_steps(after) == sum(stack.steps for stack in stacks) - total_steps(before)
    assert total_steps(after) - 18 * 20 == 3 * after[0].steps


def test_word_probes_share_the_memory_measurement_of_their_finetuning_but_not_its_timing():
    after, before = trials_of(), trials_of(size=0)
    finetuning = after[0].finetuning
    assert memory_key(after[0]) == memory_key(finetuning) != memory_key(before[0])
    assert memory_key(before[0]) != memory_key(dataclasses.replace(before[0], word_probe=None))
    keys = [Stack(0, tuple(trials)).time_key for trials in ([finetuning], before, after, after[:5])]
    assert len(set(keys)) == 4  # the last has fewer probes per model
    assert Stack(0, tuple(after[6:])).time_key == keys[2]  # other seeds


def test_a_word_probe_stores_one_epoch_however_long_its_finetuning():
    handler, short = HANDLERS["word_probe"], trials_of()[0]
    long = dataclasses.replace(short, training=dataclasses.replace(short.training, epochs=100))
    assert handler.max_epochs(short) == handler.max_epochs(long) == 1
    assert handler.result_bytes(short, 12) == handler.result_bytes(long, 12)
    assert handler.evaluations(long) == 100  # of the finetuning


def test_models_finetuned_with_other_seeds_of_components_are_other_models():
    after = trials_of()
    own = [dataclasses.replace(trial, seeds=(("subset", 9),)) for trial in after]
    assert count_models([*after, *own]) == 6
    assert total_steps([*after, *own]) == 2 * total_steps(after)
    before = [dataclasses.replace(trial, seeds=(("subset", 9),)) for trial in trials_of(size=0)]
    assert count_models(before) == 1


# --- models on disk ---


def test_saved_models_are_complete_or_missing(tmp_path):
    import torch

    trial = Trial("m", "mf", "t", "tf", 16, 0)
    assert load_finetuned(None, trial) is None
    assert load_finetuned(tmp_path, trial) is None
    save_finetuned(tmp_path, trial, {"w": torch.ones(3)}, {"metrics": {"task_accuracy": 0.5}, "seconds": 1.0})
    weights, metadata = load_finetuned(tmp_path, trial)
    assert weights["w"].tolist() == [1.0, 1.0, 1.0]
    assert metadata["metrics"] == {"task_accuracy": 0.5}
    file = model_path(tmp_path, trial)
    content = file.read_bytes()
    file.write_bytes(content[:-4])
    assert load_finetuned(tmp_path, trial) is None
    file.write_bytes(content)
    needed = models_to_keep([Stack(0, tuple(trials_of(seeds=[0])))])
    assert [finetuning.id for finetuning in needed] == [trial.id]
    delete_unused(tmp_path, needed)
    assert file.exists()
    delete_unused(tmp_path, models_to_keep([Stack(0, tuple(trials_of(seeds=[1])))]))
    assert not file.exists()
    delete_unused(tmp_path / "nowhere", needed)
