"""Choose what to build: the recommended variant of a study, or one that the user describes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.analysis.recommend import QUESTIONS, TOLERANCE, Answer, Goal, recommend
from whichlayers.analysis.recommend.base import describe_layers
from whichlayers.analysis.verdicts import NOTHING_TO_GAIN, RECOMMENDED
from whichlayers.deploy.adapter_settings import adapter_words, parse_adapter_layers, trial_with_setting
from whichlayers.deploy.probe_settings import probes_with_setting
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import ResultsDB
from whichlayers.results.folder import StudyFolder
from whichlayers.results.frames import finished, load_points
from whichlayers.runs.assets import Assets
from whichlayers.study.expand import head_of, template_of
from whichlayers.study.selection import example_count
from whichlayers.study.study_file import Study
from whichlayers.text import short_names
from whichlayers.trial import Surgery, Training, Trial, get_probe

if TYPE_CHECKING:
    from whichlayers.config.sections import Size


@dataclass(frozen=True)
class Choice:
    """What to build."""

    trial: Trial  # model, task, surgery and training; its size and seed may be replaced
    reason: str  # why this variant, as a sentence
    answer: Answer | None = None  # the recommendation that it follows


@dataclass(frozen=True)
class RequestedVariant:
    """A variant in the user's words; layers are numbered from 1."""

    layers: tuple[int, ...] = ()  # the pretrained layers to keep, in order; (): all
    reinit: tuple[int, ...] = ()  # positions in the resulting model
    freeze: tuple[int, ...] = ()
    full: bool = False  # all layers, finetuned as usual
    # what is recommended as the answer to this question; None: to the first that has one
    question: str | None = None
    # layers with adapters: "everywhere", "first:2", "last:2" or such as "5-6"; "": no adapters
    adapters: str = ""
    settings: tuple[tuple[str, str], ...] = ()  # which of the study's adapters or probes: (("rank", "8"),)

    @property
    def described(self) -> bool:
        """Whether layers are named; otherwise the study decides."""
        return bool(self.layers or self.reinit or self.freeze or self.adapters)


def parse_layers(option: str, text: str | None) -> tuple[int, ...]:
    """Layers from text: "1-8" or "1,3,5-8"; () for None."""
    if text is None:
        return ()
    layers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise WhichlayersError(
                f"{option} {text}: give layers such as 1-8 or 1,3,5-8, where 1 is the lowest"
            )
        layers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(layers)


def choose(
    folder: StudyFolder,
    study: Study,
    assets: Assets,
    variant: RequestedVariant,
    *,
    model: str | None = None,
    task: str | None = None,
    tolerance: float = TOLERANCE,
    goal: Goal | None = None,
) -> Choice:
    """What to build for one model and one task of a study.

    Args:
        folder: The study folder.
        study: The study.
        assets: Loads the models and tasks of the study.
        variant: What to build; if it names nothing, what the study recommends.
        model, task: Names, if the study has several.
        tolerance, goal: As for `recommend`.

    Raises:
        WhichlayersError: If the model or task is ambiguous or unknown.
    """
    model_spec = _select(
        "model", study.models, model, lambda spec: (Path(spec.name).name, *short_names([spec.name]).values())
    )
    task_spec = _select(
        "task", study.tasks, task, lambda spec: (spec.name, spec.name.removeprefix("builtin:"))
    )
    model_info, task_info = assets.model_info(model_spec), assets.task_info(task_spec)
    with ResultsDB.open_readonly(folder.database) as db:
        done = [
            t
            for t in db.trials("done")
            if t.model_fingerprint == model_info.fingerprint and t.task_fingerprint == task_info.fingerprint
        ]
    base = _base_trial(study, done)
    if base is None:
        size = example_count((task_spec.train_sizes or study.train_sizes)[-1], task_info.train_rows)
        base = Trial(
            *(
                model_info.name,
                model_info.fingerprint,
                task_info.name,
                task_info.fingerprint,
                size,
                study.seed,
            ),
            revision=model_spec.revision,
            head=head_of(study, model_info),
            bos=model_spec.bos,
            pair_template=template_of(study, task_spec, model_info, task_info),
            training=study.training.at(size, None, None, ()),
        )
    if variant.full:
        return Choice(base, "all layers, finetuned as usual, as requested.")
    features = variant.question == "features" or (goal == "features" and not variant.described)
    if variant.settings and not (variant.adapters or features):
        raise WhichlayersError(
            "--setting: only with --adapters, which says which layers have adapters, or with --for features; give one "
            "of them, or leave it out"
        )
    if variant.adapters:
        usual = study.training.at(base.train_size, None, None, ())
        return _with_adapters(variant, done, usual, model_info.depth)
    if variant.described:
        return Choice(_described(base, study, variant, model_info.depth), f"as requested: {_words(variant)}.")
    points = finished(load_points(folder.path))
    of_both = (points["model_fingerprint"] == model_info.fingerprint) & (points["task"] == task_info.name)
    points, probes = points[of_both], set[str]()
    if features:
        option = "--for features" if variant.question is None else f"--like {variant.question}"
        probes |= probes_with_setting(done, dict(variant.settings), option)
        points = points[(points["kind"] != "probe") | points["trial_id"].isin(probes)]
    recommendation = recommend(points, tolerance, None if variant.question else goal)
    answers = [a for a in recommendation.answers if variant.question in (None, a.question)]
    largest = max((a.train_size for a in answers), default=0)
    answers = [a for a in answers if a.train_size == largest]
    asked = variant.question
    best = recommendation.best(answers) if asked is None else _answer_to(asked, answers)
    if best is None and features:
        return _last_layer(answers, done, model_info.depth, probes)
    if best is None:
        why = _why_nothing(answers, folder.path.name, goal)
        return Choice(base, f"all layers, finetuned as usual, since nothing else is recommended. {why}")
    trial = next(t for t in done if t.id == best.trial_id)
    return Choice(trial, f"recommended by the study. {best.text}", best)


def _last_layer(
    answers: Sequence[Answer], done: Sequence[Trial], depth: int, probes: Collection[str]
) -> Choice:
    """The features of the last layer, if the study shows that no other layer's are better; otherwise an error."""
    if not answers or answers[0].verdict != NOTHING_TO_GAIN:
        why = answers[0].text if answers else "The study has no probing experiment."
        raise WhichlayersError(f"--for features: nothing is recommended. {why}")
    trial = next(
        t
        for t in done
        if t.id in probes and get_probe(t).layer == depth and t.train_size == answers[0].train_size
    )
    return Choice(trial, f"all layers, since the features of no other layer are better. {answers[0].text}")


def _why_nothing(answers: Sequence[Answer], study: str, goal: Goal | None = None) -> str:
    """Why nothing is recommended: the answer, or the verdict on each question if there are several."""
    if not answers:
        return f"The study asked no question that {'a model' if goal is None else f'--for {goal}'} answers."
    if len(answers) == 1:
        return f"{QUESTIONS[answers[0].question].title}: {answers[0].text}"
    verdicts = dict.fromkeys(f"{QUESTIONS[a.question].title}: {a.verdict}." for a in answers)
    return f"{' '.join(verdicts)} `whichlayers recommend {study}` says why."


def _answer_to(question: str, answers: Sequence[Answer]) -> Answer:
    """The recommended one of the answers to a question; an error if there is none."""
    option = f"--like {question}"
    if question not in QUESTIONS:
        known = ", ".join(("recommended", "full", *QUESTIONS))
        raise WhichlayersError(f"{option}: choose one of {known}")
    if not answers:
        raise WhichlayersError(
            f"{option}: the study did not ask this; `whichlayers recommend` writes a study file that does"
        )
    found = next((a for a in answers if a.verdict == RECOMMENDED), None)
    if found is None:
        raise WhichlayersError(f"{option}: nothing is recommended. {answers[0].text}")
    return found


def _select(
    what: str, specs: Sequence[Any], wanted: str | None, names: Callable[[Any], tuple[str, ...]]
) -> Any:
    """The only one of `specs`, or that with `wanted` as its name or as its only short name."""
    listed = ", ".join(spec.name for spec in specs)
    if not specs:
        raise WhichlayersError(f"the study has no {what}: there is nothing to finetune on")
    if wanted is None:
        if len(specs) > 1:
            raise WhichlayersError(f"the study has several {what}s: give --{what} with one of {listed}")
        return specs[0]
    found = [spec for spec in specs if spec.name == wanted] or [s for s in specs if wanted in names(s)]
    if len(found) != 1:
        raise WhichlayersError(f"--{what} {wanted}: the study has no such {what}; choose one of: {listed}")
    return found[0]


def _base_trial(study: Study, done: Sequence[Trial]) -> Trial | None:
    """A finetuning trial of the study without surgery, with the largest training size; None if there is none.

    If experiments have their own training settings, trials with those of the study are preferred.
    """
    plain = [
        t
        for t in done
        if t.kind == "finetune"
        and t.adapter is None
        and t.surgery.canonical() == Surgery()
        and t.training == dataclasses.replace(t.training, **_plain_training(t.training))
    ]

    def preference(trial: Trial) -> tuple[int, bool]:
        usual = study.training.at(trial.train_size, None, None, ())
        return trial.train_size, trial.training == usual

    return max(plain, key=preference, default=None)


def _plain_training(training: Training) -> dict[str, Any]:
    """The settings of finetuning all layers alike."""
    return {"lr_factors": (), "parameters": "all"}


def _described(base: Trial, study: Study, variant: RequestedVariant, depth: int) -> Trial:
    """The trial of a variant that the user describes, of a model with `depth` layers."""
    if unknown := [layer for layer in variant.layers if not 1 <= layer <= depth]:
        raise WhichlayersError(
            f"--layers: there is no layer {unknown[0]}, the model has layers 1 to {depth}; give some of these"
        )
    layers = len(variant.layers) or depth
    if unknown := [layer for layer in variant.reinit if not 1 <= layer <= layers]:
        raise WhichlayersError(
            f"--reinit: there is no layer {unknown[0]}, the resulting model has layers 1 to {layers}; give some of "
            "these"
        )
    for layer in variant.freeze:
        if not 1 <= layer <= layers:
            raise WhichlayersError(f"--freeze: there is no layer {layer}, the model has layers 1 to {layers}")
        if layer in variant.reinit:
            raise WhichlayersError(
                f"--reinit and --freeze both name layer {layer}: a re-initialized layer that is frozen stays random; "
                "name it in one of them"
            )
    surgery = Surgery(
        variant.layers or None, variant.reinit, study.recipe[0], study.keep_layer_norm[0]
    ).canonical()
    frozen = sorted({0, *variant.freeze} if 1 in variant.freeze else {*variant.freeze})  # 0: the embeddings
    training = dataclasses.replace(base.training, lr_factors=tuple((layer, 0.0) for layer in frozen))
    return dataclasses.replace(base, surgery=surgery, training=training)


def _with_adapters(variant: RequestedVariant, done: Sequence[Trial], usual: Training, depth: int) -> Choice:
    """Adapters in the layers that the user describes, of a setting that the study trained."""
    other = next((n for n in ("layers", "reinit", "freeze") if getattr(variant, n)), None)
    if other is not None:
        raise WhichlayersError(f"--adapters and --{other} exclude each other: give one of them")
    layers = parse_adapter_layers(variant.adapters, depth)
    if layers is None:
        if not re.match(r"\s*\d", variant.adapters):
            raise WhichlayersError(
                f"--adapters {variant.adapters}: give everywhere, first:K, last:K or layers such as 5-6"
            )
        layers = parse_layers("--adapters", variant.adapters)
    for layer in layers:
        if not 1 <= layer <= depth:
            raise WhichlayersError(
                f"--adapters: there is no layer {layer}, the model has layers 1 to {depth}"
            )
    trial = trial_with_setting(done, dict(variant.settings), usual)
    assert trial.adapter is not None
    adapter = dataclasses.replace(trial.adapter, layers=layers).canonical()
    words = f"{adapter_words(adapter)}, learning rate {trial.training.lr:g}"
    reason = f"as requested: adapters in {describe_layers(adapter.layers)} ({words})."
    return Choice(dataclasses.replace(trial, adapter=adapter), reason)


def _words(variant: RequestedVariant) -> str:
    """A variant in words: "keep layers 1-8, freeze layers 1-6"."""
    parts = {"keep": variant.layers, "re-initialize": variant.reinit, "freeze": variant.freeze}
    return ", ".join(f"{verb} {describe_layers(layers)}" for verb, layers in parts.items() if layers)


def training_size(text: Size | None, trial: Trial, rows: int) -> int:
    """Number of training examples: of the study's trial for None, else a number, a fraction or "all" of `rows`."""
    if text is None:
        return min(trial.train_size, rows)
    size = example_count(text, rows)
    if not 1 <= size <= rows or (isinstance(text, float) and not 0 < text < 1):
        raise WhichlayersError(
            f"--train {text}: the task has {rows:,} training examples; choose 1 to {rows:,}, or all"
        )
    return size
