"""Name the conditions of a study: its curves are told apart by the settings in which they differ.

One experiment with LoRA of rank 8 has the condition "everywhere". Beside one with IA3 on the same data, they are
"everywhere, LoRA" and "everywhere, IA3", or "last, IA3" if it has other layers: the two could be mistaken for one
series of models. Settings in which the points of an experiment agree are not named, so that the conditions of a study,
and the results that are stored under them, stay as they are if nothing is ambiguous.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import product

from whichlayers.conditions import with_lr, with_settings
from whichlayers.experiments.base import TaskExperiment, Variant
from whichlayers.study.metadata import ModelInfoLike, TaskInfoLike
from whichlayers.study.selection import counts_of, tasks_of, variants_of
from whichlayers.study.study_file import Study


def settings_to_name(
    study: Study, models: Sequence[ModelInfoLike], tasks: Sequence[TaskInfoLike]
) -> list[Mapping[str, AbstractSet[str]]]:
    """The settings that conditions name.

    Returns:
        For each experiment of the study: name in the results -> settings in which some of its curves differ from
        another of that name, for the same task and training size. All curves of that name have them.
    """
    # (name in the results, setting) -> (task, size) -> its values
    values: dict[tuple[str, str], dict[tuple[str, int], set[str]]] = defaultdict(lambda: defaultdict(set))
    found = []  # of each experiment: (name in the results, setting)
    for experiment in study.experiments:
        named = _settings_of(experiment, models) if isinstance(experiment, TaskExperiment) else set()
        found.append({(name, setting) for name, setting, _ in named})
        used = tasks_of(study, experiment)
        groups = [
            (task.name, size)
            for task, info in zip(study.tasks, tasks, strict=True)
            if task in used
            for size in counts_of(study, experiment, task, info.train_rows)
        ]
        for (name, setting, value), group in product(named, groups):
            values[name, setting][group].add(value)
    differing = {key for key, by_group in values.items() if any(len(v) > 1 for v in by_group.values())}
    return [_by_name(settings & differing) for settings in found]


def condition_of(variant: Variant, named: AbstractSet[str]) -> str:
    """The condition of a variant's points, with the settings in `named` and its own learning rate."""
    settings = [name for setting, name in variant.settings if setting in named]
    return with_lr(with_settings(variant.condition, settings), variant.lr)


def _settings_of(experiment: TaskExperiment, models: Sequence[ModelInfoLike]) -> set[tuple[str, str, str]]:
    """The settings of an experiment: its name in the results, the setting, and the name of its value."""
    return {
        (variant.experiment or experiment.kind, setting, value)
        for model in models
        for variant in variants_of(experiment, model)
        for setting, value in variant.settings
    }


def _by_name(settings: AbstractSet[tuple[str, str]]) -> Mapping[str, AbstractSet[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for name, setting in settings:
        found[name].add(setting)
    return found
