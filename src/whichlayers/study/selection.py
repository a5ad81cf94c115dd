"""What the experiments of a study train: their tasks, their numbers of examples and their variants of a model."""

from __future__ import annotations

from whichlayers.config.sections import Size, TaskSpec
from whichlayers.experiments import AnyExperiment
from whichlayers.experiments.base import TaskExperiment, Variant
from whichlayers.experiments.word_base import WordExperiment
from whichlayers.study.metadata import ModelInfoLike
from whichlayers.study.study_file import Study


def tasks_of(study: Study, experiment: AnyExperiment) -> list[TaskSpec]:
    """The tasks of a study that an experiment finetunes on."""
    names = experiment.finetuned_on if isinstance(experiment, WordExperiment) else experiment.tasks
    return [task for task in study.tasks if names == "all" or task.name in names]


def sizes_of(study: Study, experiment: AnyExperiment, task: TaskSpec) -> tuple[Size, ...]:
    """The training sizes of an experiment on a task, as in the study file."""
    return experiment.train_sizes or task.train_sizes or study.train_sizes


def counts_of(study: Study, experiment: AnyExperiment, task: TaskSpec, rows: int) -> list[int]:
    """The training sizes of an experiment on a task with `rows` examples, as numbers of examples."""
    return list(dict.fromkeys(example_count(size, rows) for size in sizes_of(study, experiment, task)))


def example_count(size: Size, rows: int) -> int:
    """The number of examples that a training size (500, 0.1 or "all") means for a task with `rows` examples."""
    if size == "all":
        return rows
    return max(1, round(size * rows)) if isinstance(size, float) else int(size)


def variants_of(experiment: TaskExperiment, model: ModelInfoLike) -> list[Variant]:
    """The variants of a model, without those that train biases alone if the model has none."""
    variants = experiment.variants(model.depth)
    return [variant for variant in variants if model.has_biases or variant.parameters != "biases"]
