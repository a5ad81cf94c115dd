"""Finetune a stack of trials: the one entry to the engine.

    outcomes = finetune(trials, encoder, data, device="cuda")

The trials must agree in what `stack_key` names; everything else is each trial's own. A trial's result does
not depend on which others are in its stack.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence

import torch
from transformers import PreTrainedModel

from whichlayers.data.tokenize import TokenisedTask
from whichlayers.engine.checkpoint import Checkpoint
from whichlayers.engine.export_weights import encoder_weights
from whichlayers.engine.results import EngineSettings, EpochRecord, OnEpoch, OnStep, OnTrained, Outcome
from whichlayers.engine.stack_trainer import StackRun
from whichlayers.engine.weight_change import weight_changes
from whichlayers.errors import WhichlayersError
from whichlayers.models.anatomy import FAMILIES, Anatomy
from whichlayers.trial import Trial

DEVICES = "cpu, cuda or cuda:N"


def stack_key(trial: Trial, family: str | None = None, depth: int | None = None) -> Hashable:
    """What the trials of one stack must share: architecture, task, number of steps and batch size.

    With the model's `depth`, one whose layers are shuffled is known to be like one whose layers are not.
    """
    order, training = trial.surgery.order, trial.training
    if order is None and depth is not None:
        order = tuple(range(1, depth + 1))
    layers_differ = family in FAMILIES and FAMILIES[family].first_layer_stays is not None
    return (
        trial.model_fingerprint,
        trial.task_fingerprint,
        trial.train_size,
        order
        if layers_differ or order is None
        else len(order),  # where layers differ in kind, their order is the architecture
        (training.epochs, training.batch_size, training.max_length, training.dropout, training.evaluate),
        (training.betas, training.eps, training.clip_norm, training.warmup, training.schedule),
    )


def finetune(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    data: TokenisedTask,
    *,
    device: str | torch.device = "cpu",
    on_epoch: OnEpoch | None = None,
    on_step: OnStep | None = None,
    on_restored: OnStep | None = None,
    on_trained: OnTrained | None = None,
    with_changes: bool = True,
    settings: EngineSettings | None = None,
) -> list[Outcome]:
    """Train all trials at once and evaluate them. `encoder` is pretrained and stays as it is.

    `on_step` counts optimiser steps of trials; `on_restored` those that an earlier run did and a checkpoint holds.
    `on_trained` gets the weights of each trial's finetuned encoder, of those without an error. `with_changes`:
    measure how far every matrix moved.
    """
    settings, device = settings or EngineSettings(), checked_device(device)
    check_stackable(trials, encoder.config.model_type, Anatomy(encoder).depth)
    started = time.perf_counter()
    filled = settings.filled(trials)  # results of the filling are dropped
    encoder = encoder.to(device)  # type: ignore[arg-type]
    run = StackRun(filled, encoder, data, device, settings)
    run.stack.train()
    outcomes = [Outcome(t.id) for t in trials]
    checkpoint = Checkpoint(settings, trials)
    step = checkpoint.restore(run, outcomes)
    if step and on_restored is not None:
        on_restored(step * len(trials))
    if on_epoch is not None:
        for outcome in outcomes:
            for record in outcome.epochs:
                on_epoch(outcome.trial_id, record)

    per_epoch, epochs = trials[0].steps_per_epoch, trials[0].training.epochs
    for epoch in range(step // per_epoch + 1, epochs + 1):
        epoch_started = time.perf_counter()
        while step < epoch * per_epoch:
            run.runner(step)
            step += 1
            if on_step is not None:
                on_step(len(trials))
            if step < epoch * per_epoch:  # at an epoch's end the evaluation comes first
                checkpoint.save_when_due(run, outcomes)
        train_losses = (run.loss_sum / per_epoch).tolist()
        run.loss_sum.zero_()
        evaluated = epoch == epochs or trials[0].training.evaluate == "every epoch"
        dev_losses, metrics = run.evaluate() if evaluated else (train_losses, [])
        seconds = time.perf_counter() - epoch_started
        for t, outcome in enumerate(outcomes):
            if outcome.error is None and not (
                math.isfinite(train_losses[t]) and math.isfinite(dev_losses[t])
            ):
                outcome.error = (
                    f"the loss was not a finite number in epoch {epoch} "
                    f"(training {train_losses[t]}, dev {dev_losses[t]}): try a smaller lr or clip_norm = 1.0"
                )
            if outcome.error is None and evaluated:
                record = EpochRecord(epoch, train_losses[t], dev_losses[t], metrics[t], seconds)
                outcome.epochs.append(record)
                if on_epoch is not None:
                    on_epoch(outcome.trial_id, record)
    if with_changes:
        for outcome, changes in zip(outcomes, weight_changes(run), strict=False):  # the filling comes last
            outcome.weight_changes = changes if outcome.error is None else []
    for t, outcome in enumerate(outcomes):
        outcome.seconds = time.perf_counter() - started
        if on_trained is not None and outcome.error is None:
            on_trained(outcome, encoder_weights(run, t))
    if not settings.keep_checkpoint:
        checkpoint.delete()
    return outcomes


def check_stackable(trials: Sequence[Trial], family: str | None = None, depth: int | None = None) -> None:
    if not trials:
        raise WhichlayersError("a stack needs at least one trial, got none")
    if any(trial.probe is not None for trial in trials):
        raise WhichlayersError(
            "a probe of a frozen model is not finetuned: whichlayers.probes.sentence_probe trains probes"
        )
    if any(trial.word_probe is not None for trial in trials):
        raise WhichlayersError(
            "a question about words is asked of a finetuned model: finetune `trial.finetuning`"
        )
    first = stack_key(trials[0], family, depth)
    for trial in trials[1:]:
        if stack_key(trial, family, depth) != first:
            raise WhichlayersError(
                f"trials {trials[0].id} and {trial.id} cannot share a stack: they must agree in model, task, "
                "train_size, number of layers, epochs, batch_size, max_length, dropout and optimiser settings; "
                "lr, weight decay, seed, recipe and surgery may differ"
            )


def checked_device(device: str | torch.device) -> torch.device:
    """A device that is supported and there, or a clear error."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise WhichlayersError(f"device {device}: no such device; use {DEVICES}") from None
    if wanted.type not in ("cpu", "cuda"):
        raise WhichlayersError(f"device {device}: not supported; use {DEVICES}")
    if wanted.type == "cuda":
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (wanted.index or 0) >= there:
            use = f"use cuda:0 to cuda:{there - 1}" if there else "use cpu"
            raise WhichlayersError(f"device {device}: torch sees {there} CUDA devices here; {use}")
    return wanted
