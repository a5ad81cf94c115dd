"""Run a stack of questions about words: finetune all its models at once, then ask each about every corpus.

Models that an earlier run finetuned are read from the disk. Answers are handed in as soon as a model has been
asked about a corpus: what is answered is never lost, however long the rest of the stack takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from whichlayers.engine.cost import Pace, is_out_of_memory
from whichlayers.engine.results import EngineSettings, EpochRecord, Outcome
from whichlayers.errors import WhichlayersError
from whichlayers.runs import finetuned_models
from whichlayers.runs.assets import penalties_folder
from whichlayers.runs.plan import Stack
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from whichlayers.probes.activations import Shelf
    from whichlayers.probes.probing_dataset import Studied
    from whichlayers.probes.regularization import Penalties
    from whichlayers.runs.executors.worker import OnSteps, Workplace

SAMPLED_ERROR = 0.3  # of what is judged by a few sentences

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Finetuned:
    """A model that questions are asked of, and how it did on its own task."""

    finetuning: Trial | None  # None: as it was pretrained
    weights: dict[str, Tensor] | None = None  # None: they lie on the disk, or there are none
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0  # of its finetuning
    error: str | None = None

    @property
    def name(self) -> str:
        return self.finetuning.id if self.finetuning is not None else "pretrained"


def answer_stack(stack: Stack, workplace: Workplace, on_steps: OnSteps) -> list[Any]:
    """Hands in all outcomes; those of models that could not be finetuned come back."""
    questions: dict[int | None, list[Trial]] = {}
    for trial in stack.trials:
        questions.setdefault(trial.seed if trial.finetuning else None, []).append(trial)
    models = _finetuned([mine[0].finetuning for mine in questions.values()], stack.slots, workplace, on_steps)
    failed = []
    for model, mine in zip(models, questions.values(), strict=True):
        if model.error is not None:
            failed += [Outcome(trial.id, error=model.error, seconds=model.seconds) for trial in mine]
        else:
            _ask_all(model, mine, workplace, on_steps)
    return failed


def _finetuned(
    wanted: Sequence[Trial | None], slots: int | None, workplace: Workplace, on_steps: OnSteps
) -> list[Finetuned]:
    folder = workplace.setup.encoders
    known = {}
    for trial in wanted:
        if trial is None:
            known["pretrained"] = Finetuned(None)
        elif (saved := finetuned_models.load(folder, trial)) is not None:
            known[trial.id] = Finetuned(trial, None, saved[1]["metrics"], saved[1]["seconds"])
            workplace.found_done(trial.steps)
    missing = [trial for trial in wanted if trial is not None and trial.id not in known]
    if missing:
        known |= {model.name: model for model in _finetune(missing, slots, workplace, on_steps)}
    return [known["pretrained" if trial is None else trial.id] for trial in wanted]


def _finetune(
    trials: Sequence[Trial], slots: int | None, workplace: Workplace, on_steps: OnSteps
) -> Iterator[Finetuned]:
    from whichlayers.engine.finetune import finetune

    setup, subjects = workplace.setup, workplace.subjects
    by_id, kept = {trial.id: trial for trial in trials}, {}

    def keep(outcome: Outcome, weights: dict[str, Tensor]) -> None:
        facts = {"metrics": _last_metrics(outcome), "seconds": outcome.seconds / len(trials)}
        if setup.encoders is not None:
            try:
                finetuned_models.save(setup.encoders, by_id[outcome.trial_id], weights, facts)
                return
            except OSError as error:  # a full disk, most likely
                log.warning("a finetuned model could not be saved (%s): it stays in memory", error)
        kept[outcome.trial_id] = weights

    outcomes = finetune(
        trials,
        subjects.encoder(trials[0]),
        subjects.data(trials[0]),
        device=setup.device,
        on_step=on_steps,
        on_restored=workplace.found_done,
        on_trained=keep,
        with_changes=False,  # answers are what is stored
        settings=EngineSettings(
            slots=slots, checkpoint_folder=setup.checkpoints, checkpoint_seconds=setup.checkpoint_seconds
        ),
    )
    for trial, outcome in zip(trials, outcomes, strict=True):
        seconds = outcome.seconds / len(trials)
        error = outcome.error and f"its model could not be finetuned: {outcome.error}"
        yield Finetuned(trial, kept.get(trial.id), _last_metrics(outcome), seconds, error)


def _last_metrics(outcome: Outcome) -> dict[str, float]:
    """How the finetuned model does on its own task: stored with every answer."""
    return {
        f"task_{name}": value
        for name, value in (outcome.epochs[-1].metrics if outcome.epochs else {}).items()
    }


def _ask_all(model: Finetuned, questions: Sequence[Trial], workplace: Workplace, on_steps: OnSteps) -> None:
    from whichlayers.probes.word_probe import ask

    subjects = workplace.subjects
    by_corpus: dict[str, list[Trial]] = {}
    for trial in questions:
        assert trial.word_probe is not None
        by_corpus.setdefault(trial.word_probe.fingerprint, []).append(trial)
    encoder: PreTrainedModel | None = None
    seconds = model.seconds  # of the finetuning: counted with the first answers
    with _shelf_of(model, questions[0], workplace) as shelf:
        penalties = _penalties(model, shelf, workplace)
        for mine in by_corpus.values():
            left = {trial.id for trial in mine}
            try:
                encoder = encoder or _encoder(model, questions[0], workplace)
                about = subjects.tokenizer(mine[0]), subjects.corpus(mine[0])
                for outcomes in ask(mine, encoder, *about, shelf, on_steps, penalties):
                    for outcome in outcomes:
                        outcome.seconds += seconds
                        outcome.epochs = [_with(record, model.metrics) for record in outcome.epochs]
                    seconds = 0.0
                    workplace.hand_in(outcomes)
                    left -= {outcome.trial_id for outcome in outcomes}
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                from whichlayers.runs.executors.worker import error_text

                failed = [
                    Outcome(t.id, error=error_text(error), seconds=seconds) for t in mine if t.id in left
                ]
                seconds = 0.0
                workplace.hand_in(failed)


def _with(record: EpochRecord, metrics: dict[str, float]) -> EpochRecord:
    return dataclasses.replace(record, metrics={**record.metrics, **metrics})


def _encoder(model: Finetuned, trial: Trial, workplace: Workplace) -> PreTrainedModel:
    from whichlayers.engine.export_weights import with_weights

    pretrained = workplace.subjects.encoder(trial)
    if model.finetuning is None:
        return pretrained
    weights = model.weights
    if weights is None:
        saved = finetuned_models.load(workplace.setup.encoders, model.finetuning)
        if saved is None:
            raise WhichlayersError("its finetuned model is no longer on the disk: run the study again")
        weights = saved[0]
    return with_weights(pretrained, weights)


def _penalties(model: Finetuned, shelf: Shelf, workplace: Workplace) -> Penalties:
    """A model that was finetuned is asked with what the search finds in the pretrained one, which takes a pass of its
    own."""
    from whichlayers.probes.activations import Shelf
    from whichlayers.probes.probing_dataset import Studied, word_probe_of
    from whichlayers.probes.regularization import Penalties

    subjects = workplace.subjects

    def pretrained(trial: Trial) -> Studied:
        own = Shelf(shelf.device, shelf.folder and shelf.folder / "pretrained", shelf.aligned)
        model = subjects.encoder(trial), subjects.tokenizer(trial)
        return Studied.of(*model, subjects.corpus(trial), word_probe_of(trial), own, lambda words: None)

    return Penalties(pretrained if model.finetuning else None, penalties_folder(subjects.catalogue.cache))


@contextlib.contextmanager
def _shelf_of(model: Finetuned, trial: Trial, workplace: Workplace) -> Iterator[Shelf]:
    """Where a model's word vectors are kept while it is asked: in a folder that no other study uses, for several may
    share the cache."""
    from whichlayers.probes.activations import Shelf
    from whichlayers.probes.extract_sentences import name_of

    subjects, setup = workplace.subjects, workplace.setup
    cache = subjects.catalogue.cache
    owner = [str(setup.encoders or os.getpid()), trial.model_fingerprint, model.name]
    folder = cache and cache / "words" / name_of(owner)
    try:
        yield Shelf(setup.device, folder, subjects.aligned.setdefault(trial.model_fingerprint, {}))
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def pace_of_stack(stack: Stack, workplace: Workplace, seconds: float) -> Pace:
    """How long a stack of questions takes: its finetuning is timed as any other, and a sample of the rest."""
    from whichlayers.engine.timing import measure_pace
    from whichlayers.probes.word_timing import seconds_of_questions

    setup, subjects, first = workplace.setup, workplace.subjects, stack.trials[0]
    encoder, tokenizer = subjects.encoder(first), subjects.tokenizer(first)
    mine = [t for t in stack.trials if not t.train_size or t.seed == first.seed]
    asked = seconds_of_questions(mine, encoder, tokenizer, subjects.corpus, setup.device)
    if first.finetuning is None:
        return Pace(1, asked, 0.0, 0.0, 0.0, SAMPLED_ERROR, 0.0, 0.0)
    finetunings = {t.seed: t.finetuning for t in stack.trials if t.finetuning}
    settings = EngineSettings(slots=stack.slots, alike=stack.alike)
    data = subjects.data(first)
    pace = measure_pace(list(finetunings.values()), encoder, data, setup.device, settings, seconds)
    error = max(pace.error, SAMPLED_ERROR)
    return dataclasses.replace(pace, ending=pace.ending + asked * pace.trials, error=error)
