"""Measure how long a stack takes: build one, run a few of its steps and a part of its evaluation.

On a CPU, the time of a step is a linear function of its number of tokens: a few steps of few and of many tokens
determine it, and the data loader knows the tokens of all others. The first steps take several times as long as later
ones; what they take in addition counts as setup. Of the evaluation and of the weight changes, a part is timed. On a
GPU, a length is timed after it was compiled and captured; compilation and capture are reported separately, since a run
pays for them once and not at every step. The stack is discarded afterwards.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.data.metrics import score
from whichlayers.data.tokenize import TokenizedTask
from whichlayers.engine.cost import StackTiming
from whichlayers.engine.cuda_graphs import WARMUP_STEPS
from whichlayers.engine.dataloader import EvalChunk
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.engine.timer import Timer
from whichlayers.engine.weight_change import weight_changes
from whichlayers.trial import Trial

# quantiles of the number of tokens at which steps are timed, in this order
QUANTILES = (0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6)
EAGER_WARMUP_STEPS = 3  # that take longer than later ones: they allocate memory
WARMUP_QUANTILE = 0.1
MIN_STEPS, MAX_STEPS = 3, 36
MIN_STEPS_FOR_LINE = 4
STEPS_FRACTION = 0.6  # of the time, for building the stack and for steps; the rest is for evaluation
REPLAYS = 5  # timed replays of each captured length
CHUNKS = 4  # number of evaluation chunks that are timed
PART_OF_CHUNK = 16  # a chunk whose evaluation takes too long is timed on 1/16 of its rows
LAYERS = 2  # number of layers whose weight changes are timed on a CPU
# assumed time of a further compilation, relative to the first, if only one was timed
FURTHER_COMPILATION = 0.6


def measure_timing(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    data: TokenizedTask,
    device: str | torch.device,
    settings: EngineSettings | None = None,
    seconds: float = 30.0,
) -> StackTiming:
    """Time a stack of these trials in about `seconds`, or longer if a few steps take longer than that."""
    device, settings = torch.device(device), settings or EngineSettings()
    began = time.perf_counter()
    encoder = encoder.to(device)  # type: ignore[arg-type]
    timer = Timer(device)
    trainers: list[StackTrainer] = []
    setup = timer(lambda: trainers.append(StackTrainer(trials, encoder, data, device, settings)))
    trainer = trainers[0]
    if trainer.step_runner.graphs is not None:
        steps = _time_captured_steps(trainer, timer, began + seconds)
    else:
        steps = _time_eager_steps(trainer, timer, began + STEPS_FRACTION * seconds)
    evaluation = _time_evaluation(trainer, timer, began + seconds)
    return StackTiming(
        trials=len(trainer.trials),
        setup=setup + steps.warm_up,
        compile=steps.compile,
        capture=steps.capture,
        step=steps.mean,
        error=steps.error,
        evaluation=evaluation,
        finish=_time_weight_changes(trainer, timer),
        fixed_step=steps.fixed,
        slowdown=timer.slowdown,
    )


@dataclass(frozen=True)
class StepTiming:
    """Seconds of the training steps of a stack."""

    mean: float  # of all steps
    fixed: float  # part of it that does not depend on the number of tokens
    error: float  # standard error of the mean, relative to it
    warm_up: float = 0.0  # that the first steps take in addition
    compile: float = 0.0  # of all lengths
    capture: float = 0.0  # of all lengths


def _single_step(trainer: StackTrainer, step: int) -> Callable[[], None]:
    """A function that runs training step number `step`."""

    def run() -> None:
        trainer.step_on_device.fill_(step)
        trainer.step_runner(step)

    return run


def _time_eager_steps(trainer: StackTrainer, timer: Timer, deadline: float) -> StepTiming:
    """Time steps of few and of many tokens until the deadline, after some steps to warm up."""
    tokens = _tokens_per_step(trainer)  # (steps,)
    by_tokens = np.argsort(tokens, kind="stable")

    def at_quantile(quantile: float) -> int:
        return int(by_tokens[int(quantile * (len(tokens) - 1))])

    first = at_quantile(WARMUP_QUANTILE)
    warm_up = sum(timer(_single_step(trainer, first)) for _ in range(EAGER_WARMUP_STEPS))
    timed: list[int] = []
    seconds: list[float] = []
    for quantile in itertools.islice(itertools.cycle(QUANTILES), MAX_STEPS):
        if len(timed) >= MIN_STEPS and time.perf_counter() > deadline:
            break
        timed.append(at_quantile(quantile))
        seconds.append(timer(_single_step(trainer, timed[-1])))
    fixed, per_token, error = fit_step_seconds(tokens[timed], np.array(seconds))
    additional = warm_up - EAGER_WARMUP_STEPS * (fixed + per_token * float(tokens[first]))
    return StepTiming(fixed + per_token * float(tokens.mean()), fixed, error, max(0.0, additional))


def fit_step_seconds(tokens: np.ndarray, seconds: np.ndarray) -> tuple[float, float, float]:
    """Fit the seconds of steps as a linear function of their tokens.

    Args:
        tokens: (n,) number of tokens of each timed step.
        seconds: (n,) their seconds.

    Returns:
        Fixed seconds of a step, seconds per token, both at least 0, and the standard error of the mean, relative to
        it, from the deviations from the line. With few steps, or all of the same size, nothing is fixed.
    """
    fixed, slope = 0.0, float(seconds.sum() / tokens.sum())
    if len(tokens) >= MIN_STEPS_FOR_LINE and np.ptp(tokens) > 0:
        line = np.polyfit(tokens, seconds, 1)
        if line[0] < 0:  # the number of tokens makes no difference
            fixed, slope = float(seconds.mean()), 0.0
        elif line[1] > 0:
            slope, fixed = float(line[0]), float(line[1])
    deviations = seconds - (fixed + slope * tokens)
    parameters = 2 if fixed and slope else 1
    variance = float((deviations**2).sum()) / max(1, len(tokens) - parameters)
    return fixed, slope, float(np.sqrt(variance / len(tokens)) / seconds.mean())


def _time_captured_steps(trainer: StackTrainer, timer: Timer, deadline: float) -> StepTiming:
    """Compile, capture and replay the most frequent length, then other lengths until the deadline."""
    lengths, counts = np.unique(trainer.step_runner.sizes, return_counts=True)
    order = [int(lengths[counts.argmax()])]
    order += [n for n in (int(lengths[-1]), int(lengths[0]), *lengths.tolist()) if n not in order]
    replay_seconds: dict[int, float] = {}
    compile_seconds: list[float] = []
    capture_seconds: list[float] = []
    errors: list[float] = []
    for length in dict.fromkeys(order):
        if compile_seconds and time.perf_counter() + FURTHER_COMPILATION * compile_seconds[0] > deadline:
            break
        run = _single_step(trainer, int(np.flatnonzero(trainer.step_runner.sizes == length)[0]))
        cold = timer(run)
        warm = sum(timer(run) for _ in range(WARMUP_STEPS - 1))  # the last of them captures
        times = [timer(run) for _ in range(REPLAYS)]
        replay_seconds[length] = float(np.median(times))
        errors.append(_relative_standard_error(times))
        compile_seconds.append(max(0.0, cold - replay_seconds[length]))
        capture_seconds.append(warm)
    step = float(_interpolate(replay_seconds, lengths) @ counts / counts.sum())
    fixed = min(step, float(_interpolate(replay_seconds, np.zeros(1))[0]))
    further = compile_seconds[1:] or [FURTHER_COMPILATION * compile_seconds[0]]
    compilation = sum(compile_seconds) + float(np.mean(further)) * (len(lengths) - len(compile_seconds))
    capture = float(np.mean(capture_seconds)) * len(lengths)
    return StepTiming(step, fixed, max(errors), compile=compilation, capture=capture)


def _interpolate(replay_seconds: dict[int, float], lengths: np.ndarray) -> np.ndarray:
    """(lengths,) seconds on a line fitted to the measured lengths; with a single one, half of its time is fixed."""
    known = sorted(replay_seconds)
    if len(known) == 1:
        return replay_seconds[known[0]] * (0.5 + 0.5 * lengths / known[0])
    slope, intercept = np.polyfit(known, [replay_seconds[n] for n in known], 1)
    return np.maximum(intercept + slope * lengths, 0.0)


def _tokens_per_step(trainer: StackTrainer) -> np.ndarray:
    """(steps,) number of tokens that each step computes, summed over trials; with padding unless it is packed."""
    loader = trainer.train_loader
    if not trainer.packed:
        return loader.step_lengths.astype(float) * loader.batch_size * len(trainer.trials)
    rows = loader.batch_rows  # (T, steps, B), -1 where a batch is not full
    lengths = loader.row_lengths[rows.clamp(min=0).long()] * (rows >= 0)
    total: Tensor = lengths.sum((0, 2))
    return total.cpu().numpy().astype(float)


def _relative_standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean, divided by the mean."""
    if len(values) < 2:
        return 0.0
    return float(np.std(values, ddof=1) / np.sqrt(len(values)) / np.mean(values))


@torch.no_grad()
def _time_evaluation(trainer: StackTrainer, timer: Timer, deadline: float) -> float:
    """Seconds to evaluate all dev sets, extrapolated from some chunks by their tokens and from one trial's metrics.

    If there is no time for whole chunks, a part of the rows of each is timed.
    """
    trainer.model.eval()
    seconds = 0.0
    for number, loader in enumerate(trainer.eval_loaders.values()):
        places = np.unique(np.linspace(0, len(loader.chunks) - 1, CHUNKS).round().astype(int))
        chunks = [loader.chunks[place] for place in places[::-1]]
        parts = [take_rows(chunk, PART_OF_CHUNK) for chunk in chunks]
        trainer.compute_logits(parts[:1])  # warm up
        began = time.perf_counter()
        trainer.compute_logits(parts[:1])
        now = time.perf_counter()
        needed = (now - began) * sum(chunk.tokens for chunk in chunks) / parts[0].tokens
        is_time = needed < (deadline - now) / (len(trainer.eval_loaders) - number)
        timed = chunks if is_time or trainer.device.type == "cuda" else parts
        spent = sum(timer(partial(trainer.compute_logits, [chunk])) for chunk in timed)
        per_token = spent / sum(_computed_tokens(trainer, chunk) for chunk in timed)
        seconds += per_token * sum(_computed_tokens(trainer, chunk) for chunk in loader.chunks)
        compute_scores = partial(score, trainer.data.metrics, loader.split.labels, loader.split.labels)
        compute_scores()  # the first call imports libraries
        seconds += timer(compute_scores) * len(trainer.trials)
    trainer.model.train()
    return seconds


def take_rows(chunk: EvalChunk, every: int) -> EvalChunk:
    """The rows 0, `every`, 2 * `every`, ... of a chunk."""
    inputs = {name: values[::every] for name, values in chunk.inputs.items()}
    return EvalChunk(inputs, int(inputs["attention_mask"].sum()))


def _computed_tokens(trainer: StackTrainer, chunk: EvalChunk) -> int:
    """Number of tokens of a chunk that a trial computes: with padding unless the stack is packed."""
    return chunk.tokens if trainer.packed else chunk.inputs["input_ids"].numel()


def _time_weight_changes(trainer: StackTrainer, timer: Timer) -> float:
    """Seconds to measure all weight changes; on a CPU extrapolated from some layers."""
    depth = trainer.initial_weights.depth_of(trainer.trials[0])
    if trainer.device.type == "cuda" or depth <= LAYERS:
        return timer(lambda: weight_changes(trainer))
    layers = {1 + round(place * (depth - 1) / (LAYERS - 1)) for place in range(LAYERS)}
    return timer(lambda: weight_changes(trainer, layers)) * depth / len(layers)
