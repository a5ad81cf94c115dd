"""Handler of word probes: the models of a stack are finetuned together, then each is probed on every corpus.

Models that an earlier run finetuned are read from disk. Results are reported as soon as they are known, so that they
are not lost if a later part of the stack is interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whichlayers.engine.cost import MemoryCost, StackTiming, TrialWork
from whichlayers.engine.out_of_memory import is_out_of_memory
from whichlayers.engine.results import EpochRecord, TrialResult
from whichlayers.engine.settings import EngineSettings
from whichlayers.errors import WhichlayersError
from whichlayers.probes.progress import WORD_PROBE_STEPS
from whichlayers.results.db import ResultsDB
from whichlayers.runs.assets import Assets, penalties_folder
from whichlayers.runs.events import Reporter, error_text
from whichlayers.runs.handlers.base import (
    TRAINING_COST,
    VALUE_BYTES,
    TrialHandler,
    WorkerContext,
    count_weights,
)
from whichlayers.runs.handlers.finetune import FinetuneHandler
from whichlayers.runs.handlers.finetuned_models import load_finetuned, save_finetuned
from whichlayers.trial import Trial, get_word_probe

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from whichlayers.probes.activations import ActivationStore
    from whichlayers.probes.lambda_search import LambdaSearch
    from whichlayers.probes.probing_dataset import ProbingDataset

TOKENS_PER_WORD = 1.3  # about, in English
SAMPLE_ERROR = 0.15  # relative error of a time that is extrapolated from a few sentences
# in results.db: those of an epoch, further metrics, baselines, L1, L2 and metrics of the task
VALUES_PER_PROBE = 12

log = logging.getLogger(__name__)


@dataclasses.dataclass
class ProbedModel:
    """A model to be probed, finetuned or pretrained, and its result on its own task."""

    finetuning: Trial | None  # the trial that finetunes it; None: the pretrained model
    weights: dict[str, Tensor] | None = None  # None: on disk, or pretrained
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0  # of its finetuning
    error: str | None = None  # why it could not be finetuned

    @property
    def name(self) -> str:
        return self.finetuning.id if self.finetuning is not None else "pretrained"


class WordProbeHandler(TrialHandler):
    """Finetunes models and trains probes on the hidden states of the words of tagged corpora."""

    needs_model_folder = True
    timing_scales = False

    def stack_key(self, trial: Trial, assets: Assets) -> Hashable:
        return _model_key(trial)

    def finetunes(self, trial: Trial) -> bool:
        return trial.train_size > 0

    def steps(self, trial: Trial) -> int:
        return WORD_PROBE_STEPS

    def shared_steps(self, trial: Trial) -> dict[Hashable, int]:
        """The finetuning of its model, which all probes of the model share."""
        return {(_model_key(trial), _seeds(trial)): trial.steps} if trial.train_size else {}

    def group_by_model(self, trials: Sequence[Trial]) -> list[Sequence[Trial]]:
        """One model for the seeds of its finetuning; the pretrained model does not depend on a seed."""
        groups: dict[Hashable, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(_seeds(trial) if trial.train_size else None, []).append(trial)
        return list(groups.values())

    def kept_models(self, trials: Sequence[Trial]) -> list[Trial]:
        finetunings = (group[0].finetuning for group in self.group_by_model(trials))
        return [finetuning for finetuning in finetunings if finetuning is not None]

    def task_name(self, trial: Trial) -> str:
        return f"{trial.task}, then word probes" if trial.task else "word probes (pretrained)"

    def max_epochs(self, trial: Trial) -> int:
        return 1  # the result is stored as that of epoch 1

    def result_bytes(self, trial: Trial, depth: int) -> int:
        return VALUE_BYTES * VALUES_PER_PROBE

    def work(self, trials: Sequence[Trial], assets: Assets) -> TrialWork:
        """Finetuning, forward passes and probes together, spread evenly over the steps of the stack."""
        from whichlayers.probes.labels import training_tags
        from whichlayers.probes.run_word_probes import group_by_corpus
        from whichlayers.probes.timing import equivalent_epochs

        model = assets.model_of(trials[0])
        weights = count_weights(model.depth, model.hidden_size)
        neurons = (model.depth + 1) * model.hidden_size
        finetunings = self.kept_models(trials)
        total, steps = 0.0, len(trials) * WORD_PROBE_STEPS
        if finetunings:
            steps += len(finetunings) * finetunings[0].steps
            work = FinetuneHandler().work(finetunings, assets)
            total += len(finetunings) * work.total(finetunings[0].steps)
        for group in self.group_by_model(trials):
            for corpus_trials in group_by_corpus(group):
                probes = [get_word_probe(trial) for trial in corpus_trials]
                corpus = assets.corpus(probes[0])
                total += weights * TOKENS_PER_WORD * corpus.n_words
                epochs = sum(equivalent_epochs(probe, model.depth + 1) for probe in probes)
                outputs = len(training_tags(corpus.train))
                total += TRAINING_COST * epochs * corpus.train.n_words * neurons * outputs
        return TrialWork(step=total / steps)

    def memory_key(self, trial: Trial) -> Hashable:
        """That of the finetuning, whose memory is measured: both kinds of trial share the measurement."""
        finetuning = trial.finetuning
        return super().memory_key(trial) if finetuning is None else FinetuneHandler().memory_key(finetuning)

    def time_key(self, trials: Sequence[Trial]) -> Hashable:
        """Includes the probes of the first model, which are part of the timing."""
        probes = frozenset(get_word_probe(trial) for trial in self.group_by_model(trials)[0])
        return "word_probe", self.memory_key(trials[0]), probes

    def activation_bytes(self, trial: Trial, assets: Assets) -> int:
        """Size of the hidden states (float16) of all words of its corpus.

        Twice that if L1 and L2 are searched for a finetuned model, which needs those of the pretrained one too.
        """
        word_probe, model = get_word_probe(trial), assets.model_of(trial)
        size = assets.corpus(word_probe).n_words * (model.depth + 1) * model.hidden_size * 2
        return size * (2 if word_probe.lambdas is None and trial.train_size else 1)

    def restore(self, db: ResultsDB, cache: Path | None) -> None:
        """Write the penalties that finished trials found by grid search to the cache.

        Further probes then use the same penalties, even if the cache was lost or the study moved to another machine.
        """
        from whichlayers.probes.lambda_search import save_lambdas, search_key

        folder = penalties_folder(cache)
        if folder is None:
            return
        penalties = {
            search_key(trial): lambdas
            for trial, lambdas in db.penalties()
            if get_word_probe(trial).lambdas is None
        }
        for key, lambdas in penalties.items():
            save_lambdas(folder, key, lambdas)

    def preload(self, trials: Sequence[Trial], worker: WorkerContext) -> None:
        super().preload(trials, worker)
        for probe in {get_word_probe(trial) for trial in trials}:
            worker.assets.corpus(probe)

    def run(
        self, trials: Sequence[Trial], worker: WorkerContext, settings: EngineSettings, report: Reporter
    ) -> None:
        groups = self.group_by_model(trials)
        models = _get_models([group[0].finetuning for group in groups], worker, settings, report)
        for model, group in zip(models, groups, strict=True):
            if model.error is None:
                _probe_model(model, group, worker, report)
            else:
                report.results([TrialResult(t.id, error=model.error, seconds=model.seconds) for t in group])

    def measure_memory(self, trial: Trial, worker: WorkerContext, max_stack: int) -> MemoryCost | None:
        """Memory of finetuning; that of the probes does not depend on their number."""
        finetuning = trial.finetuning
        return None if finetuning is None else FinetuneHandler().measure_memory(finetuning, worker, max_stack)

    def measure_time(
        self, trials: Sequence[Trial], worker: WorkerContext, settings: EngineSettings, seconds: float
    ) -> StackTiming:
        """The timing of finetuning, in about `seconds`, and of a sample of the probes."""
        import torch

        from whichlayers.engine.timer import Timer
        from whichlayers.probes.timing import estimate_word_probe_seconds

        assets, groups = worker.assets, self.group_by_model(trials)
        timer = Timer(torch.device(worker.device))
        first = trials[0]
        encoder, tokenizer = assets.encoder(first), assets.tokenizer(first)
        probe_seconds = estimate_word_probe_seconds(
            groups[0], encoder, tokenizer, lambda trial: assets.corpus(get_word_probe(trial)), timer
        )
        finetunings = self.kept_models(trials)
        if not finetunings:
            return StackTiming(
                trials=1,
                setup=probe_seconds,
                compile=0.0,
                capture=0.0,
                step=0.0,
                error=SAMPLE_ERROR,
                evaluation=0.0,
                finish=0.0,
                slowdown=timer.slowdown,
            )
        timing = FinetuneHandler().measure_time(finetunings, worker, settings, seconds)
        error = max(timing.error, SAMPLE_ERROR)
        return dataclasses.replace(timing, finish=timing.finish + probe_seconds * timing.trials, error=error)


def _model_key(trial: Trial) -> Hashable:
    """The model of a word probe and how it is finetuned, without the seed."""
    training = trial.training if trial.train_size else None
    return ("words", trial.input_fingerprint, trial.task_fingerprint, trial.train_size, trial.head, training)


def _seeds(trial: Trial) -> Hashable:
    """The seeds of the finetuning."""
    return trial.seed, trial.seeds


def _get_models(
    finetunings: Sequence[Trial | None], worker: WorkerContext, settings: EngineSettings, report: Reporter
) -> list[ProbedModel]:
    """The models of these finetuning trials (None: the pretrained model), from disk or finetuned now."""
    folder = worker.finetuned_models
    models = {}
    for trial in finetunings:
        if trial is None:
            models["pretrained"] = ProbedModel(None)
        elif (saved := load_finetuned(folder, trial)) is not None:
            models[trial.id] = ProbedModel(trial, None, saved[1]["metrics"], saved[1]["seconds"])
            report.restored(trial.steps)
    missing = [trial for trial in finetunings if trial is not None and trial.id not in models]
    if missing:
        models |= {model.name: model for model in _finetune(missing, worker, settings, report)}
    return [models["pretrained" if trial is None else trial.id] for trial in finetunings]


def _finetune(
    trials: Sequence[Trial], worker: WorkerContext, settings: EngineSettings, report: Reporter
) -> Iterator[ProbedModel]:
    """Finetune models as one stack, and save them if there is a folder for them."""
    from whichlayers.engine.finetune import finetune

    assets, folder = worker.assets, worker.finetuned_models
    by_id, in_memory = {trial.id: trial for trial in trials}, {}

    def keep(result: TrialResult, weights: dict[str, Tensor]) -> None:
        """Save a finetuned model, or keep its weights in memory."""
        metadata = {"metrics": _task_metrics(result), "seconds": result.seconds / len(trials)}
        if folder is not None:
            try:
                save_finetuned(folder, by_id[result.trial_id], weights, metadata)
                return
            except OSError as error:  # most likely the disk is full
                log.warning("could not save a finetuned model (%s): it is kept in memory", error)
        in_memory[result.trial_id] = weights

    results = finetune(
        trials,
        assets.encoder(trials[0]),
        assets.data(trials[0]),
        device=worker.device,
        on_step=report.steps,
        on_restored=report.restored,
        on_trained=keep,
        with_weight_changes=False,  # only the results of probes are stored
        settings=dataclasses.replace(settings, keep_checkpoint=False),  # the models are saved instead
    )
    for trial, result in zip(trials, results, strict=True):
        seconds = result.seconds / len(trials)
        error = result.error and f"its model could not be finetuned: {result.error}"
        yield ProbedModel(trial, in_memory.get(trial.id), _task_metrics(result), seconds, error)


def _task_metrics(result: TrialResult) -> dict[str, float]:
    """The last metrics of a finetuned model on its own task, as task_NAME; stored with each of its probes."""
    return {
        f"task_{name}": value for name, value in (result.epochs[-1].metrics if result.epochs else {}).items()
    }


def _probe_model(
    model: ProbedModel, trials: Sequence[Trial], worker: WorkerContext, report: Reporter
) -> None:
    """Run all word probes of one model, corpus by corpus; an error fails only the probes of its corpus."""
    from whichlayers.probes.run_word_probes import group_by_corpus, run_word_probes

    assets = worker.assets
    encoder: PreTrainedModel | None = None
    seconds = model.seconds  # of the finetuning: added to the first results
    with _activation_store(model, trials[0], worker) as store:
        lambda_search = _lambda_search(model, store, worker)
        for corpus_trials in group_by_corpus(trials):
            unfinished = {trial.id for trial in corpus_trials}
            try:
                encoder = encoder or _load_encoder(model, trials[0], worker)
                tokenizer = assets.tokenizer(corpus_trials[0])
                corpus = assets.corpus(get_word_probe(corpus_trials[0]))
                for results in run_word_probes(
                    corpus_trials, encoder, tokenizer, corpus, store, report.steps, lambda_search
                ):
                    for result in results:
                        result.seconds += seconds
                        result.epochs = [_add_metrics(record, model.metrics) for record in result.epochs]
                    seconds = 0.0
                    report.results(results)
                    unfinished -= {result.trial_id for result in results}
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                failed = [
                    TrialResult(trial.id, error=error_text(error), seconds=seconds)
                    for trial in corpus_trials
                    if trial.id in unfinished
                ]
                seconds = 0.0
                report.results(failed)


def _add_metrics(record: EpochRecord, metrics: dict[str, float]) -> EpochRecord:
    return dataclasses.replace(record, metrics={**record.metrics, **metrics})


def _load_encoder(model: ProbedModel, trial: Trial, worker: WorkerContext) -> PreTrainedModel:
    from whichlayers.engine.export_weights import with_weights

    pretrained = worker.assets.encoder(trial)
    if model.finetuning is None:
        return pretrained
    weights = model.weights
    if weights is None:
        saved = load_finetuned(worker.finetuned_models, model.finetuning)
        if saved is None:
            raise WhichlayersError("its finetuned model is no longer on disk: run the study again")
        weights = saved[0]
    return with_weights(pretrained, weights)


def _lambda_search(model: ProbedModel, store: ActivationStore, worker: WorkerContext) -> LambdaSearch:
    """The search for L1 and L2; for a finetuned model it uses the hidden states of the pretrained one."""
    from whichlayers.probes.activations import ActivationStore
    from whichlayers.probes.lambda_search import LambdaSearch
    from whichlayers.probes.probing_dataset import ProbingDataset

    assets = worker.assets

    def pretrained_dataset(trial: Trial) -> ProbingDataset:
        folder = store.folder and store.folder / "pretrained"
        return ProbingDataset.from_encoder(
            assets.encoder(trial),
            assets.tokenizer(trial),
            assets.corpus(get_word_probe(trial)),
            get_word_probe(trial),
            ActivationStore(store.device, folder, store.alignments),
            lambda words: None,
        )

    return LambdaSearch(
        pretrained_dataset if model.finetuning else None, penalties_folder(assets.index.cache)
    )


@contextlib.contextmanager
def _activation_store(model: ProbedModel, trial: Trial, worker: WorkerContext) -> Iterator[ActivationStore]:
    """The store of a model's hidden states while it is probed.

    Its folder is deleted afterwards. No other study uses it, even if several studies share the cache.
    """
    from whichlayers.probes.activation_files import hash_key
    from whichlayers.probes.activations import ActivationStore

    assets = worker.assets
    cache = assets.index.cache
    owner = [str(worker.finetuned_models or os.getpid()), trial.model_fingerprint, model.name]
    folder = cache and cache / "words" / hash_key(owner)
    try:
        yield ActivationStore(
            worker.device, folder, assets.alignments.setdefault(trial.input_fingerprint, {})
        )
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
