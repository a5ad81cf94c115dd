"""Describe a study in a few sentences."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whichlayers.config.sections import PerSize, Size
from whichlayers.errors import WhichlayersError
from whichlayers.experiments import AnyExperiment
from whichlayers.experiments.base import FinetuningExperiment, ReinitExperiment
from whichlayers.experiments.probing import Probing
from whichlayers.experiments.word_base import WordExperiment
from whichlayers.study.study_file import Study, load_study
from whichlayers.text import counted, join_list, short_names
from whichlayers.trial import COMPONENTS


def describe_file(path: Path) -> str:
    """The description of the study in a file; empty if the file does not exist or is not a valid study."""
    try:
        return describe_study(load_study(path))
    except (WhichlayersError, OSError):
        return ""


def describe_study(study: Study) -> str:
    """What the study investigates, what each experiment does, and how models are trained."""
    short = short_names(model.name for model in study.models)
    models = join_list(short[model.name] for model in study.models)
    sentences = []
    if any(not isinstance(e, WordExperiment) for e in study.experiments):
        does = "does" if len(study.tasks) == 1 else "do"
        tasks = join_list(task.name for task in study.tasks)
        sentences.append(f"Which layers of {models} {does} {tasks} need?")
    if any(isinstance(e, WordExperiment) for e in study.experiments):
        does = "does" if len(study.models) == 1 else "do"
        corpora = join_list(corpus.name for corpus in study.corpora)
        sentences.append(f"What {does} {models} encode about the words of {corpora}?")
    sentences += _describe_experiments(study)
    trials = _format_per_size(study.trials, "trial")
    if not study.tasks:
        return " ".join([*sentences, f"Each probe is trained in {trials}."])
    sizes, epochs = _format_sizes(study.train_sizes), _format_per_size(study.training.epochs, "epoch")
    training = f"finetuned on {sizes} for {epochs}, with learning rate {study.training.lr:g}"
    if not any(isinstance(e, FinetuningExperiment | WordExperiment) for e in study.experiments):
        training = f"probed with {sizes}"
    sentences.append(f"Each model is {training}, in {trials}, {_trial_differences(study)}.")
    sentences += [f"{t.name} uses {_format_sizes(t.train_sizes)}." for t in study.tasks if t.train_sizes]
    return " ".join(sentences)


def _describe_experiments(study: Study) -> list[str]:
    """One sentence per experiment; experiments that differ only in their settings share a sentence."""
    settings_of: dict[str, list[list[str]]] = {}
    for experiment in study.experiments:
        name = experiment.kind.replace("_", " ").capitalize()
        settings_of.setdefault(f"{name}: {experiment.summary()}", []).append(_settings(study, experiment))
    sentences = []
    for summary, experiments in settings_of.items():
        separator = "; " if len(experiments) == 1 else ", "
        text = "; ".join(separator.join(settings) or "default settings" for settings in experiments)
        sentences.append(f"{summary} ({text})." if any(experiments) else f"{summary}.")
    return sentences


def _settings(study: Study, experiment: AnyExperiment) -> list[str]:
    """The recipe and all settings of an experiment that differ from those of the study."""
    notes = []
    if isinstance(experiment, WordExperiment):
        if experiment.corpora != "all":
            notes.append(f"on {join_list(experiment.corpora)}")
        if experiment.finetuned_on != "all":
            finetuned = (
                f"finetuned on {join_list(experiment.finetuned_on)}" if experiment.finetuned_on else ""
            )
            notes.append(finetuned or "pretrained model only")
        if experiment.standardize:
            notes.append("neurons standardized")
        if experiment.l2_norm != "squared":
            notes.append(f"{experiment.l2_norm} L2 norm")
    elif experiment.tasks != "all":
        notes.append(f"on {join_list(experiment.tasks)}")
    if isinstance(experiment, ReinitExperiment):
        notes.append(f"recipe {join_list(experiment.recipe or study.recipe)}")
        kept = experiment.keep_layer_norm or study.keep_layer_norm
        if True in kept:
            notes.append("layer norms kept" if False not in kept else "layer norms re-initialized and kept")
        if experiment.reinit_lr_factor != (1.0,):
            factors = join_list(f"{f:g}" for f in experiment.reinit_lr_factor)
            notes.append(f"re-initialized layers with {factors} times the learning rate")
    if experiment.train_sizes:
        notes.append(f"on {_format_sizes(experiment.train_sizes)}")
    if experiment.trials:
        notes.append(_format_per_size(experiment.trials, "trial"))
    if isinstance(experiment, FinetuningExperiment | WordExperiment) and experiment.epochs:
        notes.append(_format_per_size(experiment.epochs, "epoch"))
    if isinstance(experiment, FinetuningExperiment | WordExperiment | Probing) and experiment.lr:
        notes.append(f"learning rate {experiment.lr:g}")
    if isinstance(experiment, FinetuningExperiment) and experiment.training:
        given = experiment.training.model_fields_set
        notes += [
            _setting(key, value) for key, value in experiment.training.settings().items() if key in given
        ]
    return notes


def _setting(key: str, value: Any) -> str:
    """A key of `training` with its value: "20 epochs", "learning rate 0.001", "without bias correction"."""
    if isinstance(value, PerSize):
        return _format_per_size(value, "epoch")
    name = {"lr": "learning rate", "frozen_dropout": "dropout in frozen layers"}.get(
        key, key.replace("_", " ")
    )
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {name}"
    if isinstance(value, tuple):
        return f"{name} {join_list(f'{number:g}' for number in value)}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def _trial_differences(study: Study) -> str:
    """How trials differ: by their seed if all examples are used, otherwise by their random subset."""
    if study.vary_apart:
        return f"with separate seeds for {join_list(study.vary)}"
    if set(study.vary) != set(COMPONENTS):
        return f"which differ in {join_list(study.vary)} only"
    sizes = study.train_sizes
    subsets = [size for size in sizes if size != "all"]
    one = study.trials == PerSize(1)
    if not subsets:
        return "with one seed" if one else "each with its own seed"
    where = "on a random subset" if len(subsets) == len(sizes) else "on a random subset or on all examples"
    return where if one else f"each {where}"


def _format_sizes(sizes: Iterable[Size]) -> str:
    """(0.1, "all") -> "10% and all of the training examples" """
    sizes = list(sizes)
    parts = ["all" if s == "all" else f"{100 * s:.3g}%" if isinstance(s, float) else f"{s:,}" for s in sizes]
    of_the = "of the " if any(isinstance(s, float) for s in sizes) else ""
    return f"{join_list(parts)} {of_the}training {'example' if sizes == [1] else 'examples'}"


def _format_per_size(number: PerSize, unit: str) -> str:
    """ "5 trials up to 500 examples and 1 trial above" """
    parts = [f"{counted(n, unit)} up to {limit:,} examples" for limit, n in number.steps]
    return join_list([*parts, counted(number.default, unit) + (" above" if parts else "")])
