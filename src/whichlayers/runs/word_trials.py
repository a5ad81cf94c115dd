"""Run and time a stack of word probes: finetune all its models together, then probe each on every corpus.

Models that an earlier run finetuned are read from disk. Results are reported as soon as they are known, so that they
are not lost if a later part of the stack is interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from whichlayers.engine.cost import StackTiming, is_out_of_memory
from whichlayers.engine.results import EngineSettings, EpochRecord, TrialResult
from whichlayers.errors import WhichlayersError
from whichlayers.runs.assets import penalties_folder
from whichlayers.runs.finetuned_models import load_model, save_model
from whichlayers.runs.plan import Stack
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from whichlayers.probes.activations import ActivationStore
    from whichlayers.probes.probing_dataset import ProbingDataset
    from whichlayers.probes.regularization import LambdaSearch
    from whichlayers.runs.executors.worker import OnSteps, TrialRunner

SAMPLE_ERROR = 0.3  # relative error of a time that is extrapolated from a few sentences

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


def run_word_stack(stack: Stack, runner: TrialRunner, on_steps: OnSteps) -> list[Any]:
    """Run the word probes of a stack.

    Results are reported by `runner.report_results`.

    Returns:
        Failed results of the trials whose model could not be finetuned; these are not reported.
    """
    by_seed: dict[int | None, list[Trial]] = {}  # None: the pretrained model
    for trial in stack.trials:
        by_seed.setdefault(trial.seed if trial.finetuning else None, []).append(trial)
    finetunings = [trials[0].finetuning for trials in by_seed.values()]
    models = _get_models(finetunings, stack.slots, runner, on_steps)
    failed = []
    for model, trials in zip(models, by_seed.values(), strict=True):
        if model.error is not None:
            failed += [TrialResult(trial.id, error=model.error, seconds=model.seconds) for trial in trials]
        else:
            _probe_model(model, trials, runner, on_steps)
    return failed


def _get_models(
    finetunings: Sequence[Trial | None], slots: int | None, runner: TrialRunner, on_steps: OnSteps
) -> list[ProbedModel]:
    """The models of these finetuning trials (None: the pretrained model), from disk or finetuned now."""
    folder = runner.config.finetuned_models
    models = {}
    for trial in finetunings:
        if trial is None:
            models["pretrained"] = ProbedModel(None)
        elif (saved := load_model(folder, trial)) is not None:
            models[trial.id] = ProbedModel(trial, None, saved[1]["metrics"], saved[1]["seconds"])
            runner.report_restored(trial.steps)
    missing = [trial for trial in finetunings if trial is not None and trial.id not in models]
    if missing:
        models |= {model.name: model for model in _finetune(missing, slots, runner, on_steps)}
    return [models["pretrained" if trial is None else trial.id] for trial in finetunings]


def _finetune(
    trials: Sequence[Trial], slots: int | None, runner: TrialRunner, on_steps: OnSteps
) -> Iterator[ProbedModel]:
    """Finetune models as one stack, and save them if there is a folder for them."""
    from whichlayers.engine.finetune import finetune

    config, assets = runner.config, runner.assets
    by_id, in_memory = {trial.id: trial for trial in trials}, {}

    def keep(result: TrialResult, weights: dict[str, Tensor]) -> None:
        """Save a finetuned model, or keep its weights in memory."""
        metadata = {"metrics": _task_metrics(result), "seconds": result.seconds / len(trials)}
        if config.finetuned_models is not None:
            try:
                save_model(config.finetuned_models, by_id[result.trial_id], weights, metadata)
                return
            except OSError as error:  # most likely the disk is full
                log.warning("could not save a finetuned model (%s): it is kept in memory", error)
        in_memory[result.trial_id] = weights

    results = finetune(
        trials,
        assets.encoder(trials[0]),
        assets.data(trials[0]),
        device=config.device,
        on_step=on_steps,
        on_restored=runner.report_restored,
        on_trained=keep,
        with_weight_changes=False,  # only the results of probes are stored
        settings=EngineSettings(
            slots=slots, checkpoint_folder=config.checkpoints, checkpoint_seconds=config.checkpoint_seconds
        ),
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


def _probe_model(model: ProbedModel, trials: Sequence[Trial], runner: TrialRunner, on_steps: OnSteps) -> None:
    """Run all word probes of one model, corpus by corpus; an error fails only the probes of its corpus."""
    from whichlayers.probes.word_probe import run_word_probes

    assets = runner.assets
    by_corpus: dict[str, list[Trial]] = {}
    for trial in trials:
        assert trial.word_probe is not None
        by_corpus.setdefault(trial.word_probe.fingerprint, []).append(trial)
    encoder: PreTrainedModel | None = None
    seconds = model.seconds  # of the finetuning: added to the first results
    with _activation_store(model, trials[0], runner) as store:
        lambda_search = _lambda_search(model, store, runner)
        for corpus_trials in by_corpus.values():
            unfinished = {trial.id for trial in corpus_trials}
            try:
                encoder = encoder or _load_encoder(model, trials[0], runner)
                tokenizer, corpus = assets.tokenizer(corpus_trials[0]), assets.corpus(corpus_trials[0])
                for results in run_word_probes(
                    corpus_trials, encoder, tokenizer, corpus, store, on_steps, lambda_search
                ):
                    for result in results:
                        result.seconds += seconds
                        result.epochs = [_add_metrics(record, model.metrics) for record in result.epochs]
                    seconds = 0.0
                    runner.report_results(results)
                    unfinished -= {result.trial_id for result in results}
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                from whichlayers.runs.executors.worker import error_text

                failed = [
                    TrialResult(trial.id, error=error_text(error), seconds=seconds)
                    for trial in corpus_trials
                    if trial.id in unfinished
                ]
                seconds = 0.0
                runner.report_results(failed)


def _add_metrics(record: EpochRecord, metrics: dict[str, float]) -> EpochRecord:
    return dataclasses.replace(record, metrics={**record.metrics, **metrics})


def _load_encoder(model: ProbedModel, trial: Trial, runner: TrialRunner) -> PreTrainedModel:
    from whichlayers.engine.export_weights import with_weights

    pretrained = runner.assets.encoder(trial)
    if model.finetuning is None:
        return pretrained
    weights = model.weights
    if weights is None:
        saved = load_model(runner.config.finetuned_models, model.finetuning)
        if saved is None:
            raise WhichlayersError("its finetuned model is no longer on disk: run the study again")
        weights = saved[0]
    return with_weights(pretrained, weights)


def _lambda_search(model: ProbedModel, store: ActivationStore, runner: TrialRunner) -> LambdaSearch:
    """The search for L1 and L2; for a finetuned model it uses the hidden states of the pretrained one."""
    from whichlayers.probes.activations import ActivationStore
    from whichlayers.probes.probing_dataset import ProbingDataset, get_word_probe
    from whichlayers.probes.regularization import LambdaSearch

    assets = runner.assets

    def pretrained_dataset(trial: Trial) -> ProbingDataset:
        folder = store.folder and store.folder / "pretrained"
        return ProbingDataset.from_encoder(
            assets.encoder(trial),
            assets.tokenizer(trial),
            assets.corpus(trial),
            get_word_probe(trial),
            ActivationStore(store.device, folder, store.alignments),
            lambda words: None,
        )

    return LambdaSearch(
        pretrained_dataset if model.finetuning else None, penalties_folder(assets.index.cache)
    )


@contextlib.contextmanager
def _activation_store(model: ProbedModel, trial: Trial, runner: TrialRunner) -> Iterator[ActivationStore]:
    """The store of a model's hidden states while it is probed.

    Its folder is deleted afterwards. No other study uses it, even if several studies share the cache.
    """
    from whichlayers.probes.activations import ActivationStore
    from whichlayers.probes.extract_sentences import hash_key

    assets, config = runner.assets, runner.config
    cache = assets.index.cache
    owner = [str(config.finetuned_models or os.getpid()), trial.model_fingerprint, model.name]
    folder = cache and cache / "words" / hash_key(owner)
    try:
        yield ActivationStore(
            config.device, folder, assets.alignments.setdefault(trial.model_fingerprint, {})
        )
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def time_word_stack(stack: Stack, runner: TrialRunner, seconds: float) -> StackTiming:
    """Timing of a stack of word probes: of its finetuning, and of a sample of its probes.

    Args:
        stack: The stack.
        runner: Of this process.
        seconds: Time for the measurement of the finetuning.
    """
    from whichlayers.engine.timing import measure_timing
    from whichlayers.probes.word_timing import estimate_word_probe_seconds

    config, assets, first = runner.config, runner.assets, stack.trials[0]
    encoder, tokenizer = assets.encoder(first), assets.tokenizer(first)
    trials = [t for t in stack.trials if not t.train_size or t.seed == first.seed]  # of one model
    probe_seconds = estimate_word_probe_seconds(trials, encoder, tokenizer, assets.corpus, config.device)
    if first.finetuning is None:
        return StackTiming(
            trials=1,
            setup=probe_seconds,
            compile=0.0,
            capture=0.0,
            step=0.0,
            error=SAMPLE_ERROR,
            evaluation=0.0,
            finish=0.0,
        )
    finetunings = {t.seed: t.finetuning for t in stack.trials if t.finetuning}
    settings = EngineSettings(slots=stack.slots, similar_stacks=stack.similar_stacks)
    data = assets.data(first)
    timing = measure_timing(list(finetunings.values()), encoder, data, config.device, settings, seconds)
    error = max(timing.error, SAMPLE_ERROR)
    return dataclasses.replace(timing, finish=timing.finish + probe_seconds * timing.trials, error=error)
