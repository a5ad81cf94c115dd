"""Check a study against its models, tasks and corpora; all problems are reported at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from whichlayers.config.errors import Problem, format_value
from whichlayers.config.toml import KeyPath
from whichlayers.config.validators import as_tuple
from whichlayers.experiments.adapt import Adapt, matching_modules
from whichlayers.experiments.base import ReinitExperiment
from whichlayers.experiments.freeze import Freeze
from whichlayers.experiments.probing import Probing
from whichlayers.experiments.word_base import WordExperiment
from whichlayers.study.metadata import CorpusInfoLike, InfoLike, ModelInfoLike, TaskInfoLike
from whichlayers.study.selection import example_count, sizes_of, tasks_of
from whichlayers.study.study_file import Study
from whichlayers.text import counted, join_list, short_names
from whichlayers.trial import Point, Training, Trial, WordProbe

# names of the points of experiments that train a part of the model
TRAINED_PARTS = tuple(display.name for kind in (Freeze, Adapt) for display in kind.displays)
WORD_PROBE_KEYS = {  # settings of word probes -> their keys in a study file
    "lambdas": "l1, l2 or search",
    "norm": "l2_norm",
    "epochs": "probe_epochs",
    "batch_size": "probe_batch_size",
    "lr": "probe_lr",
}


def problems_of(
    study: Study,
    models: Sequence[ModelInfoLike],
    tasks: Sequence[TaskInfoLike],
    corpora: Sequence[CorpusInfoLike],
) -> list[Problem]:
    """All settings of a study that are invalid for its models, tasks or corpora."""
    return [
        *_duplicates("models", models),
        *_duplicates("tasks", tasks),
        *_duplicates("corpora", corpora),
        *_model_problems(study, models),
        *_bias_problems(study, models),
        *_size_problems(study, tasks),
        *_validation_data_problems(study, corpora),
    ]


def _duplicates(key: str, infos: Sequence[InfoLike]) -> Iterator[Problem]:
    """Sections whose content has the same fingerprint as an earlier one."""
    seen: dict[str, int] = {}
    for i, info in enumerate(infos):
        first = seen.setdefault(info.fingerprint, i)
        if first != i:
            yield Problem((key, i), f"{info.name} is the same as {key}[{first}]; remove one of them")


def _model_problems(study: Study, models: Sequence[ModelInfoLike]) -> Iterator[Problem]:
    """Settings that are invalid for one of the models: its depth, its lack of a pooler, settings of decoders."""
    for m, (spec, model) in enumerate(zip(study.models, models, strict=True)):
        if study.head == "last" and not model.causal:
            text = f'{model.name} is an encoder; use "mean", or leave it out: decoders then use "last"'
            yield Problem(("head",), text, format_value(study.head))
        if spec.bos is not None and not model.causal:
            text = f"only for decoders, and {model.name} is an encoder; remove it"
            yield Problem(("models", m, "bos"), text, format_value(spec.bos))
        if study.head == "pooler" and not model.has_pooler:
            advice = f'use "{"last" if model.causal else "mean"}", or leave it out'
            yield Problem(
                ("head",), f"{model.name} has no pretrained pooler; {advice}", format_value(study.head)
            )
        for e, experiment in enumerate(study.experiments):
            if isinstance(experiment, Probing) and "pooler" in experiment.pooling and not model.has_pooler:
                text = f'{model.name} has no pretrained pooler; use "mean" or "summary"'
                yield Problem(("experiments", e, "pooling"), text, format_value("pooler"))
            if isinstance(experiment, ReinitExperiment) and True in experiment.reinit_pooler:
                path = ("experiments", e, "reinit_pooler")
                text = f"{model.name} has no pretrained pooler to re-initialize; remove it"
                if model.has_pooler:
                    text = 'the pooler is used with head = "pooler" only; set it at the top of the file, or remove this'
                if study.head != "pooler" or not model.has_pooler:
                    yield Problem(path, text, format_value(_one_or_list(experiment.reinit_pooler)))
            if isinstance(experiment, Adapt):
                yield from _adapter_problems(("experiments", e), experiment, model)
            invalid: dict[tuple[str, str], list[object]] = {}
            for error in experiment.depth_errors(model.depth):
                invalid.setdefault((error.key, error.allowed), []).append(error.value)
            for (key, allowed), values in invalid.items():
                text = f"{model.name} has {counted(model.depth, 'layer')}: {allowed}"
                yield Problem(("experiments", e, key), text, format_value(_one_or_list(values)))


def _one_or_list(values: Sequence[object]) -> object:
    """The only value, or all of them as a list."""
    return values[0] if len(values) == 1 else list(values)


def _bias_problems(study: Study, models: Sequence[ModelInfoLike]) -> Iterator[Problem]:
    """Experiments that list biases in a study of models without biases; the default leaves them out."""
    if any(model.has_biases for model in models):
        return
    names = f"{models[0].name} has no biases" if len(models) == 1 else "none of the models has biases"
    for e, experiment in enumerate(study.experiments):
        if isinstance(experiment, Freeze) and "biases" in experiment.train and experiment.changed("train"):
            text = f"{names}: nothing but the head would be trained; remove it"
            yield Problem(("experiments", e, "train"), text, format_value("biases"))


def notes_on_models(study: Study, models: Sequence[ModelInfoLike]) -> list[str]:
    """Notes for the user on what is left out for some models: biases of models that have none."""
    if not any(isinstance(e, Freeze) and "biases" in e.train for e in study.experiments):
        return []
    short = short_names(model.name for model in models)
    names = [short[model.name] for model in models if not model.has_biases]
    verb = "has" if len(names) == 1 else "have"
    text = f"{join_list(names)} {verb} no biases: freeze leaves out the trials that train biases alone"
    return [text] if names else []


def _adapter_problems(path: KeyPath, experiment: Adapt, model: ModelInfoLike) -> Iterator[Problem]:
    """Targets that the model does not have, and ranks above their width."""
    modules, widths = tuple(model.linear_modules), dict[str, int]()
    for target in dict.fromkeys(chain.from_iterable(map(as_tuple, experiment.targets))):
        found = matching_modules(target, modules)
        if not found:
            text = f"{model.name} has no such linear module in its layers; it has: {', '.join(modules)}"
            yield Problem((*path, "targets"), text, format_value(target))
        widths |= {name: min(model.linear_modules[name]) for name in found}
    for rank in experiment.rank if widths and "lora" in experiment.method else ():
        narrow = min(widths, key=lambda name: widths[name])
        if rank > widths[narrow]:
            text = f"{narrow} of {model.name} has a width of {widths[narrow]}; allowed: 1 to {widths[narrow]}"
            yield Problem((*path, "rank"), text, format_value(rank))


def _size_problems(study: Study, tasks: Sequence[TaskInfoLike]) -> Iterator[Problem]:
    """Training sizes that exceed the number of training examples of a task."""
    for e, experiment in enumerate(study.experiments):
        for t, (task, task_info) in enumerate(zip(study.tasks, tasks, strict=True)):
            if task not in tasks_of(study, experiment):
                continue
            path: KeyPath = ("train_sizes",)
            advice = f"set `train_sizes` of tasks[{t}]"
            if experiment.train_sizes:
                path, advice = ("experiments", e, "train_sizes"), "remove this size"
            elif task.train_sizes:
                path, advice = ("tasks", t, "train_sizes"), "remove this size"
            for i, size in enumerate(sizes_of(study, experiment, task)):
                rows = task_info.train_rows
                if example_count(size, rows) > rows:
                    text = f"{task_info.name} has {counted(rows, 'training example')}; allowed: 1 to "
                    text += f'{rows}, a fraction between 0 and 1, or "all"; {advice}'
                    yield Problem((*path, i), text, format_value(size))


def _validation_data_problems(study: Study, corpora: Sequence[CorpusInfoLike]) -> Iterator[Problem]:
    """Corpora without held-out sentences, which some experiments select lambdas or neuron sets on."""
    for experiment in study.experiments:
        if not isinstance(experiment, WordExperiment) or not experiment.needs_validation_data():
            continue
        for c, corpus in enumerate(corpora):
            if experiment.uses_corpus(corpus.name) and not corpus.has_validation_data:
                text = (
                    f"{corpus.name} has one training sentence and no dev file, but {experiment.kind} selects"
                )
                yield Problem(
                    ("corpora", c), f"{text} lambdas or neuron sets on held-out sentences; set `dev`"
                )


def check_conflicts(study: Study, points: Iterable[Point]) -> None:
    """Raise a `StudyError` if two experiments of a kind have the same point with different hyperparameters.

    Their results could not be distinguished: they would look like repetitions of one trial.
    """
    seen: dict[Point, Trial] = {}
    seen_parts: dict[Point, Trial] = {}
    # the results of an experiment with its own `training` are told apart by these settings
    changed = [e for e in study.experiments if getattr(e, "training", None) is not None]
    own_training = {display.name for e in changed for display in e.displays}
    for point in points:
        if point.experiment in TRAINED_PARTS:
            whole = dataclasses.replace(point.trial.training, lr_factors=(), parameters="all")
            same = dataclasses.replace(
                point, trial=dataclasses.replace(point.trial, adapter=None, training=whole)
            )
            if seen_parts.setdefault(same, point.trial) != point.trial:
                text = f'another experiment trains other parameters at the same point, {point.experiment} "'
                text += (
                    f'{point.condition}" at {point.x:g}; put them in separate study files, or use the same'
                )
                text += " `embeddings`" if point.trial.adapter is None else " adapters"
                raise study.error([Problem(_last_of(study, point.experiment), text)])
        if point.experiment in own_training or point.trial.adapter is not None:
            continue
        settings = point.trial.training
        training = Training(lr_factors=settings.lr_factors, parameters=settings.parameters)
        word_probe = point.trial.word_probe and WordProbe("", point.trial.word_probe.fingerprint)
        without_settings = dataclasses.replace(
            point,
            trial=dataclasses.replace(point.trial, training=training, word_probe=word_probe),
        )
        if seen.setdefault(without_settings, point.trial) != point.trial:
            keys = join_list(_differences(seen[without_settings], point.trial))
            text = f"another {point.experiment} experiment trains the same models with different {keys}; "
            text += "put them in separate study files"
            raise study.error([Problem(_last_of(study, point.experiment), text)])


def _last_of(study: Study, name: str) -> KeyPath:
    """The path of the last experiment whose points are stored under this name."""
    kinds = [name in [display.name for display in e.displays] for e in study.experiments]
    return ("experiments", max(e for e, found in enumerate(kinds) if found))


def _differences(one: Trial, other: Trial) -> list[str]:
    """The keys in which two trials at the same point differ, with their values: "lr (0.001 and 0.01)"."""
    pairs: list[tuple[Any, Any, Mapping[str, str]]] = [(one.training, other.training, {})]
    if one.word_probe and other.word_probe:
        pairs.append((one.word_probe, other.word_probe, WORD_PROBE_KEYS))
    return [
        f"{keys.get(name, name)} ({format_value(value)} and {format_value(getattr(b, name))})"
        for a, b, keys in pairs
        for name, value in vars(a).items()
        if value != getattr(b, name)
    ]
