"""From a study to its trials: every point of every experiment, and the trial that answers it.

Points of several experiments may be answered by one trial, with the same id in all of them, which runs once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from typing import Protocol

from whichlayers.config.corpus import CorpusSpec
from whichlayers.config.errors import Problem, shown
from whichlayers.config.sections import ModelSpec, PerSize, Size, TaskSpec
from whichlayers.config.toml import Path
from whichlayers.experiments import AnyExperiment
from whichlayers.experiments.base import Arrangement
from whichlayers.experiments.epochs import Epochs
from whichlayers.experiments.neurons import NeuronRanking
from whichlayers.experiments.permutation import Permutation
from whichlayers.experiments.probing import Probing
from whichlayers.experiments.prune import Prune
from whichlayers.experiments.selectivity import Selectivity
from whichlayers.experiments.word_base import PRETRAINED, WordExperiment
from whichlayers.experiments.word_probing import WordProbing
from whichlayers.study.file import Study
from whichlayers.trial import Point, Probe, Recipe, Surgery, Training, Trial, WordProbe


class ModelFacts(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def depth(self) -> int: ...
    @property
    def has_pooler(self) -> bool: ...


class TaskFacts(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def train_rows(self) -> int: ...


class CorpusFacts(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def can_choose(self) -> bool: ...


class Facts(Protocol):
    """What must be known of models, tasks and corpora before their trials can be listed."""

    def model_facts(self, model: ModelSpec) -> ModelFacts: ...
    def task_facts(self, task: TaskSpec) -> TaskFacts: ...
    def corpus_facts(self, corpus: CorpusSpec) -> CorpusFacts: ...


def expand(study: Study, facts: Facts) -> list[Point]:
    """All points, always in the same order. Raises a StudyError with everything that does not fit."""
    models = [facts.model_facts(model) for model in study.models]
    tasks = [facts.task_facts(task) for task in study.tasks]
    corpora = [facts.corpus_facts(corpus) for corpus in study.corpora]
    problems = [
        *_same_twice("models", models),
        *_same_twice("tasks", tasks),
        *_same_twice("corpora", corpora),
        *_misfits(study, models),
        *_sizes_too_large(study, tasks),
        *_nothing_to_choose_by(study, corpora),
    ]
    if problems:
        raise study.error(problems)
    points: dict[tuple[str, str, float, str], Point] = {}
    for experiment in study.experiments:
        for model, of_model in zip(study.models, models, strict=True):
            plain = Trial(
                model=of_model.name,
                model_fingerprint=of_model.fingerprint,
                revision=model.revision,
                task="",
                task_fingerprint="",
                train_size=0,
                seed=study.seed,
                head=study.head,
            )
            found: list[Iterator[Point]] = []
            if isinstance(experiment, WordExperiment) and experiment.pretrained:
                found.append(_word_points(study, experiment, plain, of_model.depth, corpora, [0], tasks))
            for task, of_task in zip(study.tasks, tasks, strict=True):
                sizes = list(
                    dict.fromkeys(count(s, of_task.train_rows) for s in _sizes(study, experiment, task))
                )
                mine = dataclasses.replace(plain, task=of_task.name, task_fingerprint=of_task.fingerprint)
                if task not in tasks_of(study, experiment):
                    continue
                if isinstance(experiment, WordExperiment):
                    found.append(_word_points(study, experiment, mine, of_model.depth, corpora, sizes, tasks))
                else:
                    found.append(_points(study, experiment, mine, of_model.depth, sizes))
            for point in chain.from_iterable(found):
                points.setdefault((point.experiment, point.condition, point.x, point.trial.id), point)
    _refuse_rivals(study, points.values())
    return list(points.values())


def tasks_of(study: Study, experiment: AnyExperiment) -> list[TaskSpec]:
    """The tasks of a study that an experiment finetunes on."""
    names = experiment.finetuned_on if isinstance(experiment, WordExperiment) else experiment.tasks
    return [task for task in study.tasks if names == "all" or task.name in names]


def count(size: Size, rows: int) -> int:
    """How many of so many training rows a size of a study file stands for."""
    if size == "all":
        return rows
    return max(1, round(size * rows)) if isinstance(size, float) else int(size)


def _points(
    study: Study, experiment: AnyExperiment, plain: Trial, depth: int, sizes: Iterable[int]
) -> Iterator[Point]:
    """Every size, way of re-initialising, arrangement of layers and seed, in this order."""
    arrangements = list(experiment.arrangements(depth))
    for size, (recipe, keep_layer_norm, factor), made in product(
        sizes, _ways(study, experiment), arrangements
    ):
        surgery = Surgery(made.order, made.reinit, recipe, keep_layer_norm).canonical()
        lr_factors = tuple((layer, factor) for layer in surgery.reinit) if factor != 1 else ()
        if isinstance(experiment, Probing):
            training = Training(max_length=study.training.max_length)  # all else is the probe's own
        else:
            training = study.training.at(size, experiment.epochs, experiment.lr, lr_factors)
            if isinstance(experiment, Epochs):
                training = dataclasses.replace(training, evaluate="every epoch")
        for i in range(_trials(study, experiment, made).at(size)):
            trial = dataclasses.replace(
                plain,
                train_size=size,
                seed=study.seed + i,
                surgery=surgery,
                training=training,
                probe=made.probe,
            )
            yield Point(experiment.kind, made.condition, float(made.x), trial)


def _word_points(
    study: Study,
    experiment: WordProbing | NeuronRanking | Selectivity,
    plain: Trial,
    depth: int,
    corpora: Sequence[CorpusFacts],
    sizes: Iterable[int],
    tasks: Sequence[TaskFacts],
) -> Iterator[Point]:
    """Every question about every corpus, of one model as it was pretrained (size 0) or finetuned on one task."""
    chosen = [c for c in corpora if experiment.asks_about(c.name)]
    asked = list(experiment.asked(depth))
    for size, corpus, (question, words) in product(sizes, chosen, asked):
        training = study.training.at(size, experiment.epochs, experiment.lr, ()) if size else Training()
        trials = (
            (experiment.trials or study.trials).at(size) if size else _most_trials(study, experiment, tasks)
        )
        whose = plain.task if size else PRETRAINED
        condition = f"{whose}: {question.aspect}" if question.aspect else whose
        words = dataclasses.replace(words, corpus=corpus.name, fingerprint=corpus.fingerprint)
        for i in range(trials):
            trial = dataclasses.replace(
                plain,
                train_size=size,
                seed=study.seed + i,
                head=study.head if size else "mean",
                training=training,
                word_probe=words,
            )
            yield Point(question.experiment, condition, float(question.x), trial)


def _most_trials(study: Study, experiment: AnyExperiment, tasks: Sequence[TaskFacts]) -> int:
    """Of the pretrained model: as many as any finetuned one, since each is paired with it by its seed."""
    trials = experiment.trials or study.trials
    sizes = [
        count(size, facts.train_rows)
        for task, facts in zip(study.tasks, tasks, strict=True)
        if task in tasks_of(study, experiment)
        for size in _sizes(study, experiment, task)
    ]
    return max((trials.at(size) for size in sizes), default=trials.at(1 << 30))


def _ways(study: Study, experiment: AnyExperiment) -> list[tuple[Recipe, bool, float]]:
    """Recipe, keep_layer_norm and learning rate factor of the re-initialised layers."""
    if isinstance(experiment, Prune | Probing | WordExperiment):
        return [("as_described", False, 1.0)]  # they draw nothing anew
    recipes = experiment.recipe or study.recipe
    return list(
        product(recipes, experiment.keep_layer_norm or study.keep_layer_norm, experiment.reinit_lr_factor)
    )


def _trials(study: Study, experiment: AnyExperiment, made: Arrangement) -> PerSize:
    if made.is_baseline and isinstance(experiment, Permutation) and experiment.baseline_trials:
        return experiment.baseline_trials
    return experiment.trials or study.trials


def _sizes(study: Study, experiment: AnyExperiment, task: TaskSpec) -> tuple[Size, ...]:
    return experiment.train_sizes or task.train_sizes or study.train_sizes


def _same_twice(key: str, facts: Sequence[ModelFacts | TaskFacts | CorpusFacts]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for i, fact in enumerate(facts):
        first = seen.setdefault(fact.fingerprint, i)
        if first != i:
            yield Problem((key, i), f"{fact.name} is the same as {key}[{first}]; remove one of them")


def _misfits(study: Study, models: Sequence[ModelFacts]) -> Iterator[Problem]:
    for model in models:
        if study.head == "pooler" and not model.has_pooler:
            yield Problem(("head",), f'{model.name} has no pretrained pooler; use "mean"', shown(study.head))
        for e, experiment in enumerate(study.experiments):
            for misfit in experiment.misfits(model.depth):
                text = f"{model.name} has {model.depth} layers: {misfit.allowed}"
                yield Problem(("experiments", e, misfit.key), text, shown(misfit.given))


def _sizes_too_large(study: Study, tasks: Sequence[TaskFacts]) -> Iterator[Problem]:
    for e, experiment in enumerate(study.experiments):
        for t, (task, facts) in enumerate(zip(study.tasks, tasks, strict=True)):
            if task not in tasks_of(study, experiment):
                continue
            place: Path = ("train_sizes",)
            advice = f"give tasks[{t}] `train_sizes` of its own"
            if experiment.train_sizes:
                place, advice = ("experiments", e, "train_sizes"), "leave the size out"
            elif task.train_sizes:
                place, advice = ("tasks", t, "train_sizes"), "leave the size out"
            for i, size in enumerate(_sizes(study, experiment, task)):
                if count(size, facts.train_rows) > facts.train_rows:
                    text = f"{facts.name} has {facts.train_rows} training examples; allowed: 1 to "
                    text += f'{facts.train_rows}, a share between 0 and 1, or "all"; {advice}'
                    yield Problem((*place, i), text, shown(size))


def _nothing_to_choose_by(study: Study, corpora: Sequence[CorpusFacts]) -> Iterator[Problem]:
    for experiment in study.experiments:
        if not isinstance(experiment, WordExperiment) or not experiment.chooses():
            continue
        for c, corpus in enumerate(corpora):
            if experiment.asks_about(corpus.name) and not corpus.can_choose:
                text = f"{corpus.name} has one training sentence and no dev file, and {experiment.kind} needs further"
                yield Problem(("corpora", c), f"{text} ones to choose lambdas or sets by; give it a dev file")


def _refuse_rivals(study: Study, points: Iterable[Point]) -> None:
    """Two experiments of a kind may not answer one point with different training: their results would be
    taken for repetitions of one another."""
    seen: dict[Point, Trial] = {}
    for point in points:
        told_apart_by = Training(lr_factors=point.trial.training.lr_factors)
        probe = point.trial.probe and Probe(point.trial.probe.layer)
        words = point.trial.word_probe and WordProbe("", point.trial.word_probe.fingerprint)
        same_place = dataclasses.replace(
            point,
            trial=dataclasses.replace(point.trial, training=told_apart_by, probe=probe, word_probe=words),
        )
        if seen.setdefault(same_place, point.trial) != point.trial:
            differ = "epochs or lr" if probe is None and words is None else "settings of the probes"
            text = f"two {point.experiment} experiments ask for the same models with different {differ}; "
            raise study.error([Problem(("experiments",), text + "put them in two study files")])
