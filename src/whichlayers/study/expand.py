"""Expand a study into points, each with the trial that measures it, and check it against its models and data.

Points of several experiments may share a trial, which then runs once. The checks need the metadata of models, tasks and
corpora: depth, pooler, number of training examples, validation data. They report all problems at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, product

from whichlayers.config.errors import Problem
from whichlayers.config.sections import TaskSpec
from whichlayers.experiments import AnyExperiment
from whichlayers.experiments.adapt import matching_modules
from whichlayers.experiments.base import FinetuningExperiment, ReinitExperiment, TaskExperiment, Variant
from whichlayers.experiments.word_base import WordExperiment
from whichlayers.study.checks import check_conflicts, problems_of
from whichlayers.study.metadata import CorpusInfoLike, InfoSource, ModelInfoLike, TaskInfoLike
from whichlayers.study.name_conditions import condition_of, settings_to_name
from whichlayers.study.selection import counts_of, tasks_of, variants_of
from whichlayers.study.study_file import Study
from whichlayers.trial import (
    COMPONENTS,
    PRETRAINED,
    Adapter,
    Component,
    Head,
    Point,
    Recipe,
    Surgery,
    Training,
    Trial,
)

MAX_POINTS = 100_000  # of a study; creating them takes about ten seconds
LEVELS = 5  # seeds of a component in a round of `vary_apart`; a prime, at least the number of components


def expand(study: Study, metadata: InfoSource) -> list[Point]:
    """All points of a study, in a fixed order.

    Args:
        study: The study.
        metadata: Source of the metadata of its models, tasks and corpora.

    Returns:
        The points without duplicates.

    Raises:
        StudyError: If settings are invalid for these models, tasks or corpora; it lists all problems.
    """
    models = [metadata.model_info(model) for model in study.models]
    tasks = [metadata.task_info(task) for task in study.tasks]
    corpora = [metadata.corpus_info(corpus) for corpus in study.corpora]
    if problems := problems_of(study, models, tasks, corpora):
        raise study.error(problems)
    if (count := _count_points(study, models, tasks, corpora)) > MAX_POINTS:
        text = f"the study has {count:,} trials (before duplicates are removed), more than {MAX_POINTS:,}; reduce"
        text += " trials, train_sizes or experiments, or split it into several studies"
        raise study.error([Problem(("trials",), text)])
    points: dict[tuple[str, str, float, str], Point] = {}
    for experiment, settings in zip(study.experiments, settings_to_name(study, models, tasks), strict=True):
        for model, model_info in zip(study.models, models, strict=True):
            base = Trial(
                model=model_info.name,
                model_fingerprint=model_info.fingerprint,
                revision=model.revision,
                task="",
                task_fingerprint="",
                train_size=0,
                seed=study.seed,
                head=head_of(study, model_info),
                bos=model.bos,
            )
            point_iterators: list[Iterator[Point]] = []
            if isinstance(experiment, WordExperiment) and experiment.pretrained:
                point_iterators.append(
                    _word_points(study, experiment, base, model_info.depth, corpora, [0], tasks)
                )
            for task, task_info in zip(study.tasks, tasks, strict=True):
                if task not in tasks_of(study, experiment):
                    continue
                sizes = counts_of(study, experiment, task, task_info.train_rows)
                on_task = dataclasses.replace(
                    base,
                    task=task_info.name,
                    task_fingerprint=task_info.fingerprint,
                    pair_template=template_of(study, task, model_info, task_info),
                )
                depth = model_info.depth
                if isinstance(experiment, WordExperiment):
                    point_iterators.append(
                        _word_points(study, experiment, on_task, depth, corpora, sizes, tasks)
                    )
                else:
                    point_iterators.append(_points(study, experiment, on_task, model_info, sizes, settings))
            for point in chain.from_iterable(point_iterators):
                points.setdefault((point.experiment, point.condition, point.x, point.trial.id), point)
    check_conflicts(study, points.values())
    return list(points.values())


def head_of(study: Study, model: ModelInfoLike) -> Head:
    """The head of a model: that of the study, or the default of encoders or decoders."""
    return study.head or ("last" if model.causal else "mean")


def template_of(study: Study, task: TaskSpec, model: ModelInfoLike, task_info: TaskInfoLike) -> str:
    """The prompt of sentence pairs; empty for encoders and for tasks of single texts."""
    return task.pair_template or study.pair_template if model.causal and task_info.has_pairs else ""


def component_seeds(study: Study, i: int) -> tuple[tuple[Component, int], ...]:
    """The seeds of components in trial number `i` that differ from the trial's seed, `study.seed + i`.

    Components that the study does not vary have the seed of trial 0. With `vary_apart`, the others follow an orthogonal
    array: in each round of LEVELS**2 trials, every component takes LEVELS new seeds, each in LEVELS trials, and any two
    trials have at most one of these seeds in common. Trial i is the same for any number of trials.
    """
    round_, place = divmod(i, LEVELS**2)
    row, column = divmod(place, LEVELS)
    seeds: dict[Component, int] = {}
    for number, component in enumerate(COMPONENTS):
        if component not in study.vary:
            seeds[component] = study.seed
        elif study.vary_apart:
            seeds[component] = study.seed + LEVELS * round_ + (column + number * row) % LEVELS
    return tuple(sorted((c, seed) for c, seed in seeds.items() if seed != study.seed + i))


def _count_points(
    study: Study,
    models: Sequence[ModelInfoLike],
    tasks: Sequence[TaskInfoLike],
    corpora: Sequence[CorpusInfoLike],
) -> int:
    """The number of points of a study, without creating them."""
    total = 0
    for experiment, model in product(study.experiments, models):
        sizes = [
            size
            for task, info in zip(study.tasks, tasks, strict=True)
            if task in tasks_of(study, experiment)
            for size in counts_of(study, experiment, task, info.train_rows)
        ]
        if isinstance(experiment, WordExperiment):
            probes = sum(1 for _ in experiment.word_probes(model.depth))
            probes *= sum(experiment.uses_corpus(corpus.name) for corpus in corpora)
            total += probes * sum((experiment.trials or study.trials).at(size) for size in sizes)
            total += probes * _pretrained_trials(study, experiment, tasks) * experiment.pretrained
        else:
            settings = len(_reinit_settings(study, experiment))
            for size, variant in product(sizes, variants_of(experiment, model)):
                total += settings * (experiment.trials_of(variant) or study.trials).at(size)
    return total


def _points(
    study: Study,
    experiment: TaskExperiment,
    base: Trial,
    model: ModelInfoLike,
    sizes: Iterable[int],
    settings: Mapping[str, AbstractSet[str]],
) -> Iterator[Point]:
    """Points of one experiment, model and task, by size, re-initialization, model variant and seed.

    `base` is a trial with the model and the task; `settings` are those that conditions name.
    """
    variants = variants_of(experiment, model)
    for size, (recipe, keep_layer_norm, reinit_pooler, factor), variant in product(
        sizes, _reinit_settings(study, experiment), variants
    ):
        # the pooler is re-initialized with the layers below it
        pooler = reinit_pooler and bool(variant.reinit)
        surgery = Surgery(variant.order, variant.reinit, recipe, keep_layer_norm, pooler).canonical()
        if isinstance(experiment, FinetuningExperiment):
            lr_factors = _lr_factors(variant, factor)
            lr = variant.lr or experiment.lr
            training = experiment.training_of(study.training).at(
                size, experiment.epochs, lr, lr_factors, variant.parameters
            )
            if experiment.evaluate_every_epoch:
                training = dataclasses.replace(training, evaluate="every epoch")
        else:
            training = Training(max_length=study.training.max_length)  # a probe has its own hyperparameters
        name = variant.experiment or experiment.kind
        condition = condition_of(variant, settings.get(name, frozenset()))
        adapter = variant.adapter and _with_modules(variant.adapter, model.linear_modules)
        for i in range((experiment.trials_of(variant) or study.trials).at(size)):
            trial = dataclasses.replace(
                base,
                train_size=size,
                seed=study.seed + i,
                seeds=component_seeds(study, i),
                surgery=surgery,
                training=training,
                probe=variant.probe,
                adapter=adapter,
            )
            yield Point(name, condition, float(variant.x), trial)


def _word_points(
    study: Study,
    experiment: WordExperiment,
    base: Trial,
    depth: int,
    corpora: Sequence[CorpusInfoLike],
    sizes: Iterable[int],
    tasks: Sequence[TaskInfoLike],
) -> Iterator[Point]:
    """Points of one word-level experiment and model, by size, corpus, probe and seed.

    `base` is a trial with the model and the finetuning task. Size 0 is the pretrained model.
    """
    used_corpora = [corpus for corpus in corpora if experiment.uses_corpus(corpus.name)]
    word_probes = list(experiment.word_probes(depth))
    for size, corpus, (variant, word_probe) in product(sizes, used_corpora, word_probes):
        training = study.training.at(size, experiment.epochs, experiment.lr, ()) if size else Training()
        trials = (
            (experiment.trials or study.trials).at(size)
            if size
            else _pretrained_trials(study, experiment, tasks)
        )
        condition = base.task if size else PRETRAINED
        if variant.label:
            condition = f"{condition}: {variant.label}"
        word_probe = dataclasses.replace(word_probe, corpus=corpus.name, fingerprint=corpus.fingerprint)
        for i in range(trials):
            trial = dataclasses.replace(
                base,
                train_size=size,
                seed=study.seed + i,
                seeds=component_seeds(study, i) if size else (),
                head=base.head if size else "mean",
                training=training,
                word_probe=word_probe,
            )
            yield Point(variant.experiment, condition, float(variant.x), trial)


def _pretrained_trials(study: Study, experiment: AnyExperiment, tasks: Sequence[TaskInfoLike]) -> int:
    """Trials of the pretrained model: enough to pair each finetuned model with one of the same seed."""
    trials = experiment.trials or study.trials
    sizes = [
        size
        for task, task_info in zip(study.tasks, tasks, strict=True)
        if task in tasks_of(study, experiment)
        for size in counts_of(study, experiment, task, task_info.train_rows)
    ]
    return max((trials.at(size) for size in sizes), default=trials.at(1 << 30))


def _with_modules(adapter: Adapter, modules: Mapping[str, tuple[int, int]]) -> Adapter:
    """The adapter with the names of all modules that its targets match."""
    names = {m for target in adapter.targets for m in matching_modules(target, tuple(modules))}
    return dataclasses.replace(adapter, targets=tuple(names)).canonical()


def _reinit_settings(study: Study, experiment: TaskExperiment) -> list[tuple[Recipe, bool, bool, float]]:
    """All combinations of recipe, keep_layer_norm, reinit_pooler and lr factor of the re-initialized layers."""
    if not isinstance(experiment, ReinitExperiment):
        return [("as_described", False, False, 1.0)]  # nothing is re-initialized
    recipes = experiment.recipe or study.recipe
    kept = experiment.keep_layer_norm or study.keep_layer_norm
    return list(product(recipes, kept, experiment.reinit_pooler, experiment.reinit_lr_factor))


def _lr_factors(variant: Variant, reinit_factor: float) -> tuple[tuple[int, float], ...]:
    """The learning rate factors of a variant, multiplied by `reinit_factor` in re-initialized layers."""
    factors = dict(variant.lr_factors)
    if reinit_factor != 1:
        factors |= {layer: factors.get(layer, 1.0) * reinit_factor for layer in variant.reinit}
    return tuple(sorted(factors.items()))
