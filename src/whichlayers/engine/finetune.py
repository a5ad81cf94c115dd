"""Finetune a stack of trials; the entry point of the engine.

    results = finetune(trials, encoder, data, device="cuda")

All trials of a stack must have the same `stack_key`; everything else may differ. The result of a trial does not depend
on the other trials of its stack.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from contextlib import nullcontext

import torch
from transformers import PreTrainedModel

from whichlayers.data.tokenize import TokenizedTask
from whichlayers.engine.checkpoint import Checkpoint
from whichlayers.engine.devices import resolve_device
from whichlayers.engine.export_weights import encoder_weights
from whichlayers.engine.memory import MEASURED_STEPS, TrainingMemory
from whichlayers.engine.results import EpochRecord, OnEpoch, OnLoss, OnStep, OnTrained, TrialResult
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.engine.weight_change import weight_changes
from whichlayers.errors import WhichlayersError
from whichlayers.models.families import FAMILIES, layers_differ
from whichlayers.models.structure import ModelStructure
from whichlayers.trial import Trial

LOSS_VALUES = 64  # most calls of `on_loss`, unless there are more epochs


def stack_key(
    trial: Trial, family: str | None = None, depth: int | None = None, layers_differ: bool = False
) -> Hashable:
    """Key of the properties that trials must share to be stacked: architecture, task, number of steps, batch size.

    Args:
        trial: The trial.
        family: Model type of the encoder. If its first layer cannot be moved, the order of layers is a part of the key.
        depth: Number of layers. If given, trials with permuted and with original layer order get the same key.
        layers_differ: Whether the layers are of different kinds, see `families.layers_differ`: their order is then a
            part of the key.
    """
    order, training = trial.surgery.order, trial.training
    if order is None and depth is not None:
        order = tuple(range(1, depth + 1))
    if family in FAMILIES and FAMILIES[family].first_layer_fixed is not None:
        layers_differ = True
    return (
        trial.input_fingerprint,
        trial.task_fingerprint,
        trial.train_size,
        order if layers_differ or order is None else len(order),
        (training.epochs, training.batch_size, training.max_length, training.dropout, training.evaluate),
        (training.betas, training.eps, training.clip_norm, training.warmup, training.schedule),
        (training.bias_correction, training.precision, trial.trained_part),
        trial.head == "last",  # this head has other parameters
    )


def finetune(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    data: TokenizedTask,
    *,
    device: str | torch.device = "cpu",
    on_epoch: OnEpoch | None = None,
    on_step: OnStep | None = None,
    on_restored: OnStep | None = None,
    on_trained: OnTrained | None = None,
    on_loss: OnLoss | None = None,
    with_head: bool = False,
    with_weight_changes: bool = True,
    settings: EngineSettings | None = None,
) -> list[TrialResult]:
    """Finetune all trials at once and evaluate them.

    Args:
        trials: Trials with the same `stack_key`.
        encoder: The pretrained encoder; it is moved to the device, but not modified.
        data: The tokenized task.
        device: "cpu", "cuda" or "cuda:N".
        on_epoch: Called with a trial id and its record after each evaluation.
        on_step: Called with the number of training steps just completed, summed over trials.
        on_restored: Called once with the number of steps restored from a checkpoint, summed over trials.
        on_trained: Called with the result and the encoder weights of each trial that did not fail.
        on_loss: Called about `LOSS_VALUES` times with the number of completed steps and the mean training loss of
            each trial since the call before; on a GPU each call waits for the steps launched so far.
        with_head: Also call `on_trained` with the weights of the linear layer and of the adapters.
        with_weight_changes: Measure how far every weight matrix moved.
        settings: How to run.

    Returns:
        One result per trial, in the order of `trials`.
    """
    settings, device = settings or EngineSettings(), resolve_device(device)
    check_stackable(
        trials, encoder.config.model_type, ModelStructure(encoder).depth, layers_differ(encoder.config)
    )
    started = time.perf_counter()
    memory = TrainingMemory(device)
    with memory:
        trainer = StackTrainer(trials, encoder, data, device, settings)
    results = [TrialResult(t.id) for t in trials]  # results of the padding are dropped
    checkpoint = Checkpoint(settings, trials)
    step = restored = _restore(checkpoint, trainer, results, on_restored, on_epoch)

    per_epoch, epochs = trials[0].steps_per_epoch, trials[0].training.epochs
    window = LossWindow(trainer, per_epoch, epochs, step)
    for epoch in range(step // per_epoch + 1, epochs + 1):
        epoch_started = time.perf_counter()
        while step < epoch * per_epoch:
            # allocations of compiled code on the CPU cannot be tracked
            with memory if step < MEASURED_STEPS and not settings.compiled else nullcontext():
                trainer.step_runner(step)
            step += 1
            if on_step is not None:
                on_step(len(trials))
            if on_loss is not None and window.ends_at(step):
                on_loss(step, window.means(step)[: len(trials)])
            if step < epoch * per_epoch:  # at the end of an epoch, evaluate first
                checkpoint.save_if_due(trainer, results)
        if epoch == 1 and not restored and not (settings.compiled and device.type == "cpu"):
            for result in results:
                result.memory = memory.peak()
        _finish_epoch(trainer, results, epoch, epoch_started, on_epoch)
        window.start(step)
    trainer.step_runner.release()  # weight changes and exported weights take memory, too
    if with_weight_changes:
        for result, changes in zip(results, weight_changes(trainer), strict=False):  # the padding comes last
            result.weight_changes = changes if result.error is None else []
    for t, result in enumerate(results):
        result.seconds = time.perf_counter() - started
        result.trained_parameters = trainer.trained_parameters(t)
        if on_trained is not None and result.error is None:
            on_trained(result, encoder_weights(trainer, t, with_head))
    if not settings.keep_checkpoint:
        checkpoint.delete()
    return results


def _restore(
    checkpoint: Checkpoint,
    trainer: StackTrainer,
    results: list[TrialResult],
    on_restored: OnStep | None,
    on_epoch: OnEpoch | None,
) -> int:
    """Load the checkpoint into the trainer and the results, and report what it holds.

    Returns:
        The number of completed steps of a trial; 0 if there is no checkpoint.
    """
    step = checkpoint.restore(trainer, results)
    if step and on_restored is not None:
        on_restored(step * len(results))
    if on_epoch is not None:
        for result in results:
            for record in result.epochs:
                on_epoch(result.trial_id, record)
    return step


def _finish_epoch(
    trainer: StackTrainer, results: list[TrialResult], epoch: int, started: float, on_epoch: OnEpoch | None
) -> None:
    """Evaluate the stack if it is time, add the epoch to the results, and reset the sums of the losses.

    A trial whose loss is not finite gets an error, and no further epochs.

    Args:
        trainer: The stack, after the last step of the epoch.
        results: One for each trial.
        epoch: Number of the epoch, from 1 on.
        started: When it started, by `time.perf_counter`.
        on_epoch: As for `finetune`.
    """
    first = trainer.trials[0]
    train_losses = (trainer.loss_sum / first.steps_per_epoch).tolist()
    trainer.loss_sum.zero_()
    evaluated = epoch == first.training.epochs or first.training.evaluate == "every epoch"
    dev_losses, metrics = trainer.evaluate() if evaluated else (train_losses, [])
    seconds = time.perf_counter() - started
    for t, result in enumerate(results):
        if result.error is None and not (math.isfinite(train_losses[t]) and math.isfinite(dev_losses[t])):
            result.error = (
                f"the loss was not a finite number in epoch {epoch} "
                f"(training {train_losses[t]}, dev {dev_losses[t]}): try a smaller lr or clip_norm = 1.0"
            )
        if result.error is None and evaluated:
            record = EpochRecord(epoch, train_losses[t], dev_losses[t], metrics[t], seconds)
            result.epochs.append(record)
            if on_epoch is not None:
                on_epoch(result.trial_id, record)


class LossWindow:
    """Mean losses of consecutive steps of a stack, read from the sums that the trainer keeps on its device.

    Windows do not cross epochs, at whose end the sums are reset.

    Args:
        trainer: The trainer.
        per_epoch: Steps of an epoch.
        epochs: Number of epochs.
        step: Steps done so far, by an earlier run.
    """

    def __init__(self, trainer: StackTrainer, per_epoch: int, epochs: int, step: int) -> None:
        self.trainer, self.per_epoch = trainer, per_epoch
        self.length = math.ceil(per_epoch / max(1, LOSS_VALUES // epochs))
        self.begin, self.sums = step, trainer.loss_sum.tolist()

    def ends_at(self, step: int) -> bool:
        """Whether a window ends after this many steps."""
        return step % self.per_epoch == 0 or step % self.per_epoch % self.length == 0

    def means(self, step: int) -> list[float]:
        """Mean loss of each trial since the last call, or since `start`."""
        sums, steps = self.trainer.loss_sum.tolist(), step - self.begin
        means = [(new - old) / steps for new, old in zip(sums, self.sums, strict=True)]
        self.begin, self.sums = step, sums
        return means

    def start(self, step: int) -> None:
        """The sums were reset after this many steps."""
        self.begin, self.sums = step, [0.0] * len(self.sums)


def check_stackable(
    trials: Sequence[Trial],
    family: str | None = None,
    depth: int | None = None,
    layers_differ: bool = False,
) -> None:
    """Raise WhichlayersError unless the trials can be finetuned as one stack."""
    if not trials:
        raise WhichlayersError("a stack needs at least one trial, got none")
    if any(trial.kind == "probe" for trial in trials):
        raise WhichlayersError(
            "cannot finetune a probe of a frozen model: use whichlayers.probes.run_sentence_probes"
        )
    if any(trial.kind == "word_probe" for trial in trials):
        raise WhichlayersError(
            "cannot finetune a word probe: it probes a finetuned model; finetune `trial.finetuning`"
        )
    first = stack_key(trials[0], family, depth, layers_differ)
    for trial in trials[1:]:
        if stack_key(trial, family, depth, layers_differ) != first:
            raise WhichlayersError(
                f"trials {trials[0].id} and {trial.id} cannot share a stack: they must agree in model, task, "
                "train_size, number of layers, epochs, batch_size, max_length, dropout, optimizer settings and in what "
                "is frozen; lr, weight decay, seed, recipe and surgery may differ"
            )
