"""Expand a study into points, each with the trial that measures it, and check it against its models and data.

Points of several experiments may share a trial, which then runs once. The checks need the metadata of models, tasks and
corpora: depth, pooler, number of training examples, validation data. They report all problems at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product

from whichlayers.config.errors import Problem, format_value
from whichlayers.config.sections import Size, TaskSpec
from whichlayers.config.toml import KeyPath
from whichlayers.config.validators import as_tuple
from whichlayers.experiments import AnyExperiment
from whichlayers.experiments.adapt import Adapt, matching_modules
from whichlayers.experiments.base import FinetuningExperiment, ReinitExperiment, TaskExperiment, Variant
from whichlayers.experiments.freeze import Freeze
from whichlayers.experiments.probing import Probing
from whichlayers.experiments.word_base import WordExperiment
from whichlayers.study.metadata import CorpusInfoLike, InfoLike, InfoSource, ModelInfoLike, TaskInfoLike
from whichlayers.study.study_file import Study
from whichlayers.text import counted
from whichlayers.trial import (
    COMPONENTS,
    PRETRAINED,
    Adapter,
    Component,
    Head,
    Point,
    Probe,
    Recipe,
    Surgery,
    Training,
    Trial,
    WordProbe,
)

MAX_POINTS = 100_000  # of a study; creating them takes about ten seconds
# names of the points of experiments that train a part of the model
TRAINED_PARTS = tuple(display.name for kind in (Freeze, Adapt) for display in kind.displays)
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
    problems = [
        *_duplicates("models", models),
        *_duplicates("tasks", tasks),
        *_duplicates("corpora", corpora),
        *_model_problems(study, models),
        *_size_problems(study, tasks),
        *_validation_data_problems(study, corpora),
    ]
    if problems:
        raise study.error(problems)
    if (count := _count_points(study, models, tasks, corpora)) > MAX_POINTS:
        text = f"the study has {count:,} trials (before duplicates are removed), more than {MAX_POINTS:,}; reduce"
        text += " trials, train_sizes or experiments, or split it into several studies"
        raise study.error([Problem(("trials",), text)])
    points: dict[tuple[str, str, float, str], Point] = {}
    for experiment in study.experiments:
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
                sizes = list(
                    dict.fromkeys(
                        example_count(size, task_info.train_rows) for size in _sizes(study, experiment, task)
                    )
                )
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
                    point_iterators.append(_points(study, experiment, on_task, model_info, sizes))
            for point in chain.from_iterable(point_iterators):
                points.setdefault((point.experiment, point.condition, point.x, point.trial.id), point)
    _check_conflicts(study, points.values())
    return list(points.values())


def head_of(study: Study, model: ModelInfoLike) -> Head:
    """The head of a model: that of the study, or the default of encoders or decoders."""
    return study.head or ("last" if model.causal else "mean")


def template_of(study: Study, task: TaskSpec, model: ModelInfoLike, task_info: TaskInfoLike) -> str:
    """The prompt of sentence pairs; empty for encoders and for tasks of single texts."""
    return task.pair_template or study.pair_template if model.causal and task_info.has_pairs else ""


def tasks_of(study: Study, experiment: AnyExperiment) -> list[TaskSpec]:
    """The tasks of a study that an experiment finetunes on."""
    names = experiment.finetuned_on if isinstance(experiment, WordExperiment) else experiment.tasks
    return [task for task in study.tasks if names == "all" or task.name in names]


def example_count(size: Size, rows: int) -> int:
    """The number of examples that a training size (500, 0.1 or "all") means for a task with `rows` examples."""
    if size == "all":
        return rows
    return max(1, round(size * rows)) if isinstance(size, float) else int(size)


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
            for size in {example_count(size, info.train_rows) for size in _sizes(study, experiment, task)}
        ]
        if isinstance(experiment, WordExperiment):
            probes = sum(1 for _ in experiment.word_probes(model.depth))
            probes *= sum(experiment.uses_corpus(corpus.name) for corpus in corpora)
            total += probes * sum((experiment.trials or study.trials).at(size) for size in sizes)
            total += probes * _pretrained_trials(study, experiment, tasks) * experiment.pretrained
        else:
            settings = len(_reinit_settings(study, experiment))
            for size, variant in product(sizes, list(experiment.variants(model.depth))):
                total += settings * (experiment.trials_of(variant) or study.trials).at(size)
    return total


def _points(
    study: Study, experiment: TaskExperiment, base: Trial, model: ModelInfoLike, sizes: Iterable[int]
) -> Iterator[Point]:
    """Points of one experiment, model and task, by size, re-initialization, model variant and seed.

    `base` is a trial with the model and the task.
    """
    variants = list(experiment.variants(model.depth))
    for size, (recipe, keep_layer_norm, reinit_pooler, factor), variant in product(
        sizes, _reinit_settings(study, experiment), variants
    ):
        # the pooler is re-initialized with the layers below it
        pooler = reinit_pooler and bool(variant.reinit)
        surgery = Surgery(variant.order, variant.reinit, recipe, keep_layer_norm, pooler).canonical()
        if isinstance(experiment, FinetuningExperiment):
            lr_factors = _lr_factors(variant, factor)
            settings = experiment.training_of(study.training)
            lr = variant.lr or experiment.lr
            training = settings.at(size, experiment.epochs, lr, lr_factors, variant.parameters)
            if experiment.evaluate_every_epoch:
                training = dataclasses.replace(training, evaluate="every epoch")
        else:
            training = Training(max_length=study.training.max_length)  # a probe has its own hyperparameters
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
            yield Point(variant.experiment or experiment.kind, variant.condition, float(variant.x), trial)


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
        example_count(size, task_info.train_rows)
        for task, task_info in zip(study.tasks, tasks, strict=True)
        if task in tasks_of(study, experiment)
        for size in _sizes(study, experiment, task)
    ]
    return max((trials.at(size) for size in sizes), default=trials.at(1 << 30))


def _with_modules(adapter: Adapter, modules: Mapping[str, tuple[int, int]]) -> Adapter:
    """The adapter with the names of all modules that its targets mean."""
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


def _sizes(study: Study, experiment: AnyExperiment, task: TaskSpec) -> tuple[Size, ...]:
    return experiment.train_sizes or task.train_sizes or study.train_sizes


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
            yield Problem(
                ("head",), f'{model.name} has no pretrained pooler; use "mean"', format_value(study.head)
            )
        for e, experiment in enumerate(study.experiments):
            if isinstance(experiment, Probing) and experiment.pooling == "pooler" and not model.has_pooler:
                text = f'{model.name} has no pretrained pooler; use "mean" or "summary"'
                yield Problem(("experiments", e, "pooling"), text, format_value(experiment.pooling))
            if (
                study.head != "pooler"
                and isinstance(experiment, ReinitExperiment)
                and True in experiment.reinit_pooler
            ):
                text = 'the pooler is used with head = "pooler" only; set it at the top of the file'
                value = format_value(experiment.reinit_pooler)
                yield Problem(("experiments", e, "reinit_pooler"), text, value)
            if isinstance(experiment, Freeze) and "biases" in experiment.train and not model.has_biases:
                text = f"{model.name} has no biases: nothing but the head would be trained; remove it"
                yield Problem(("experiments", e, "train"), text, format_value("biases"))
            if isinstance(experiment, Adapt):
                yield from _adapter_problems(("experiments", e), experiment, model)
            for error in experiment.depth_errors(model.depth):
                text = f"{model.name} has {counted(model.depth, 'layer')}: {error.allowed}"
                yield Problem(("experiments", e, error.key), text, format_value(error.value))


def _adapter_problems(path: KeyPath, experiment: Adapt, model: ModelInfoLike) -> Iterator[Problem]:
    """Targets that the model does not have, and ranks above their width."""
    modules, widths = tuple(model.linear_modules), dict[str, int]()
    for target in as_tuple(experiment.targets):
        found = matching_modules(target, modules)
        if not found:
            text = f"{model.name} has no such linear module in its layers; it has: {', '.join(modules)}"
            yield Problem((*path, "targets"), text, format_value(target))
        widths |= {name: min(model.linear_modules[name]) for name in found}
    for rank in experiment.rank if widths and experiment.method == "lora" else ():
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
            for i, size in enumerate(_sizes(study, experiment, task)):
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


def _check_conflicts(study: Study, points: Iterable[Point]) -> None:
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
                text = f"two experiments train different parameters at the same point, {point.experiment} "
                text += f'"{point.condition}" at {point.x:g}; put them in separate study files'
                raise study.error([Problem(("experiments",), text)])
        if point.experiment in own_training or point.trial.adapter is not None:
            continue
        settings = point.trial.training
        training = Training(lr_factors=settings.lr_factors, parameters=settings.parameters)
        probe = point.trial.probe and Probe(point.trial.probe.layer)
        word_probe = point.trial.word_probe and WordProbe("", point.trial.word_probe.fingerprint)
        without_settings = dataclasses.replace(
            point,
            trial=dataclasses.replace(point.trial, training=training, probe=probe, word_probe=word_probe),
        )
        if seen.setdefault(without_settings, point.trial) != point.trial:
            key = "epochs or lr" if probe is None and word_probe is None else "probe settings"
            text = f"two {point.experiment} experiments train the same models with different {key}; "
            raise study.error([Problem(("experiments",), text + "put them in separate study files")])
