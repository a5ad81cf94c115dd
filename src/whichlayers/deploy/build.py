"""Build a model: finetune the chosen variant of a study, save it and evaluate what was saved."""

from __future__ import annotations

import dataclasses
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from whichlayers.analysis.recommend import TOLERANCE, Answer, Goal
from whichlayers.deploy.card import CardFacts, base_license, model_card
from whichlayers.deploy.choose import Choice, RequestedVariant, choose, training_size
from whichlayers.deploy.costs import folder_size
from whichlayers.deploy.save import layout_of, save_features, save_model
from whichlayers.deploy.text_model import Metadata, default_device, load_model
from whichlayers.deploy.train import Score, TrainedModel, best_seed, evaluate, finetune_seeds, held_out_rows
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import StudyFolder, find_folder
from whichlayers.results.frames import finished, load_points
from whichlayers.runs.assets import Assets, cache_folder
from whichlayers.study.study_file import Study, load_study
from whichlayers.trial import Surgery, Trial, get_probe
from whichlayers.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from whichlayers.config.sections import Size
    from whichlayers.data.tasks import Task

Keep = Literal["best", "all"]


@dataclass(frozen=True)
class BuiltModel:
    """A model that was built and saved."""

    folder: Path
    trial: Trial  # what was finetuned
    score: Score | None  # on the dev set, of the saved model; None for frozen features
    held_out: Score | None  # on the rows that chose among seeds; low and high are not computed
    answer: Answer | None  # the recommendation that it follows
    reason: str
    bytes: int  # of all files
    layout: str  # how it was saved, as in Metadata


@dataclass(frozen=True)
class BuildOptions:
    """What to build and how.

    Args:
        variant: Layers to keep, re-initialize, freeze or give adapters; if empty, what the study recommends.
        train: Training examples: a number, a fraction or "all"; None: as many as in the study.
        seeds: Number of seeds to train; None: as many as the study has trials.
        keep: "best" saves the seed with the highest score on held-out training examples, "all" saves each.
        model, task: Names, if the study has several.
        tolerance, goal: As for `recommend`.
        device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one.
    """

    variant: RequestedVariant = dataclasses.field(default_factory=RequestedVariant)
    train: Size | None = None
    seeds: int | None = 1
    keep: Keep = "best"
    model: str | None = None
    task: str | None = None
    tolerance: float = TOLERANCE
    goal: Goal | None = None
    device: str | None = None


OnProgress = Callable[[int, int], None]  # completed steps, all steps


def build(
    study: str | Path,
    out: str | Path,
    options: BuildOptions | None = None,
    on_progress: OnProgress | None = None,
) -> list[BuiltModel]:
    """Finetune the chosen variant of a study and save it.

    Args:
        study: Folder of a study that was run.
        out: Folder to write, which must not exist or be empty.
        options: What to build.
        on_progress: Called during training.

    Returns:
        The saved model; with keep = "all" one per seed, in folders seed-N of `out`.
    """
    options, out, folder = options or BuildOptions(), Path(out), find_folder(Path(study))
    if options.seeds is not None and options.seeds < 1:
        raise WhichlayersError(f"seeds = {options.seeds}: must be at least 1")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WhichlayersError(f"{out} already exists; choose another folder, or delete it first")
    loaded = load_study(folder.study_file)
    assets = Assets(cache_folder(folder.path))
    choice = choose(
        folder,
        loaded,
        assets,
        options.variant,
        model=options.model,
        task=options.task,
        tolerance=options.tolerance,
        goal=options.goal,
    )
    with _new_folder(out) as partial:
        builder = _Builder(folder, loaded, assets, choice, options)
        built = (
            builder.features(partial)
            if choice.trial.kind == "probe"
            else builder.finetuned(partial, on_progress)
        )
    return [dataclasses.replace(b, folder=out / b.folder.relative_to(partial)) for b in built]


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out`, which becomes `out` if the block succeeds."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{out.name}.{secrets.token_hex(4)}.partial")
    partial.mkdir()
    try:
        yield partial
        if out.exists():
            out.rmdir()  # empty
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class _Builder:
    """Builds what was chosen; the steps share the study, its data and the options."""

    def __init__(
        self, folder: StudyFolder, study: Study, assets: Assets, choice: Choice, options: BuildOptions
    ):
        self.folder, self.study, self.assets = folder, study, assets
        self.choice, self.options, self.trial = choice, options, choice.trial
        self.files = assets.index.models[self.trial.model_fingerprint]
        self.task: Task = assets.index.tasks[self.trial.task_fingerprint].load_task()
        self.depth = assets.model_of(self.trial).depth
        self.license = base_license(self.files.name, self.files.folder)

    def finetuned(self, out: Path, on_progress: OnProgress | None) -> list[BuiltModel]:
        """Finetune with each seed, and save the best one or all."""
        options, rows = self.options, len(self.task.train)
        size = training_size(options.train, self.trial, rows)
        count = options.seeds or self.study.trials.at(self.trial.train_size)
        seeds = range(self.study.seed, self.study.seed + count)
        trials = [dataclasses.replace(self.trial, train_size=size, seed=seed, seeds=()) for seed in seeds]
        held_out = count > 1 and options.keep == "best"
        total, done = sum(t.steps for t in trials), 0

        def on_step(steps: int) -> None:
            nonlocal done
            done += steps
            if on_progress is not None:
                on_progress(min(done, total), total)

        models = finetune_seeds(trials, self.assets, held_out, options.device or default_device(), on_step)
        if options.keep == "all":
            return [self._save(model, _subfolder(out, model.trial.seed), 1) for model in models]
        return [self._save(best_seed(models) if held_out else next(models), out, count)]

    def _save(self, model: TrainedModel, out: Path, seeds: int) -> BuiltModel:
        """Save a model that was chosen among `seeds`, load it again and evaluate it on the dev set."""
        layout = layout_of(model.encoder, model.trial.head)
        metadata = self._metadata(layout, model.trial)
        held_out = None
        if model.held_out is not None:
            rows = held_out_rows(len(self.task.train))
            held_out = Score(self.task.metric, model.held_out[0], math.nan, math.nan, rows)
        save_model(out, model, self.assets.tokenizer(self.trial), metadata)
        score = evaluate(load_model(out), self.task.evals[""], self.task.metric)
        parameters = sum(p.numel() for p in model.encoder.parameters())
        return self._finish(out, model.trial, metadata, parameters, score, held_out, seeds)

    def features(self, out: Path) -> list[BuiltModel]:
        """Save the frozen encoder up to the layer of a probe."""
        from whichlayers.models.surgery import reorder

        probe = get_probe(self.trial)
        layer = probe.layer
        if not layer:
            raise WhichlayersError(
                "the best features are the embeddings (layer 0), which are no model of their own"
            )
        kept = tuple(range(1, layer + 1))
        trial = dataclasses.replace(self.trial, surgery=Surgery(order=kept))
        encoder = reorder(self.assets.encoder(self.trial), kept)
        metadata = self._metadata("features", trial)
        save_features(out, encoder, self.assets.tokenizer(self.trial), metadata, probe.pooling)
        parameters = sum(p.numel() for p in encoder.parameters())
        return [self._finish(out, trial, metadata, parameters, None, None, 1)]

    def _metadata(self, layout: str, trial: Trial) -> Metadata:
        order = trial.surgery.order
        return Metadata(
            layout=layout,
            head=trial.head,
            kind=self.task.kind,
            labels=self.task.label_names,
            max_length=trial.training.max_length,
            pairs=self.task.train.pairs is not None,
            task=trial.task,
            base_model=_public_name(trial.model),
            layers=tuple(range(1, self.depth + 1)) if order is None else order,
            depth=self.depth,
            version=__version__,
            details={"trial": trial.identity(), "metric": self.task.metric},
        )

    def _finish(
        self,
        out: Path,
        trial: Trial,
        metadata: Metadata,
        parameters: int,
        score: Score | None,
        held_out: Score | None,
        seeds: int,
    ) -> BuiltModel:
        """Write the model card and the license."""
        same = _study_trials(self.folder, self.trial)
        facts = CardFacts(
            trial=trial,
            metadata=metadata,
            license=self.license,
            reason=self.choice.reason,
            study=self.study.name,
            train_rows=len(self.task.train),
            score=score,
            held_out=held_out,
            seeds=seeds,
            study_scores=same["value"].tolist(),
            study_size=self.trial.train_size,
            parameters=parameters,
            choices=1 if self.choice.answer is None else max(1, len(self.choice.answer.compared)),
        )
        (out / "README.md").write_text(model_card(facts), encoding="utf-8")
        if self.license.file is not None:
            shutil.copyfile(self.license.file, out / self.license.file.name)
        return BuiltModel(
            *(out, trial, score, held_out, self.choice.answer, self.choice.reason),
            bytes=folder_size(out),
            layout=metadata.layout,
        )


def _study_trials(folder: StudyFolder, trial: Trial) -> pd.DataFrame:
    """The finished trials of the study that differ from this one in their seed alone."""
    from whichlayers.results.db import ResultsDB

    with ResultsDB.open_readonly(folder.database) as db:
        ids = [
            t.id
            for t in db.trials("done")
            if dataclasses.replace(t, seed=trial.seed, seeds=trial.seeds).id == trial.id
        ]
    points = finished(load_points(folder.path))
    return points[points["trial_id"].isin(ids)].drop_duplicates("trial_id")


def _subfolder(out: Path, seed: int) -> Path:
    folder = out / f"seed-{seed}"
    folder.mkdir()
    return folder


def _public_name(model: str) -> str:
    """The model's name; of a folder only its last part, since a saved model may be shared."""
    return Path(model).name if Path(model).is_absolute() else model
