"""Measure how long a stack takes: build one, run a few of its steps and a part of its evaluation.

The timed steps are spread over the lengths of the stack's own batches, so that their mean estimates the mean of all
steps. On a GPU, a length is timed after it was compiled and captured; compilation and capture are reported
separately, since a run pays for them once and not at every step. The stack is discarded afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.data.metrics import score
from whichlayers.data.tokenize import TokenizedTask
from whichlayers.engine.cost import StackTiming
from whichlayers.engine.cuda_graphs import WARMUP_STEPS
from whichlayers.engine.results import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.engine.weight_change import weight_changes
from whichlayers.trial import Trial

# quantiles of the number of tokens at which steps are timed, in this order
QUANTILES = (0.5, 0.1, 0.9, 0.3, 0.7)
MIN_STEPS = 2
REPLAYS = 5  # timed replays of each captured length
CHUNKS = 4  # number of evaluation chunks that are timed
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
    """Time a stack of these trials in about `seconds`, or longer if two steps take longer than that."""
    device, settings = torch.device(device), settings or EngineSettings()
    deadline = time.perf_counter() + seconds
    encoder = encoder.to(device)  # type: ignore[arg-type]
    timer = _Timer(device)
    trainers: list[StackTrainer] = []
    setup = timer(lambda: trainers.append(StackTrainer(trials, encoder, data, device, settings)))
    trainer = trainers[0]
    captured = trainer.step_runner.graphs is not None
    time_steps = _time_captured_steps if captured else _time_eager_steps
    step, error, compilation, capture = time_steps(trainer, timer, deadline)
    evaluation = _time_evaluation(trainer, timer, deadline)
    finish = timer(lambda: weight_changes(trainer))
    return StackTiming(len(trainer.trials), setup, compilation, capture, step, error, evaluation, finish)


class _Timer:
    """Measures the seconds that a call takes, including the work it starts on the device."""

    def __init__(self, device: torch.device):
        self.device = device

    def __call__(self, call: Callable[[], object]) -> float:
        began = time.perf_counter()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - began


def _single_step(trainer: StackTrainer, step: int) -> Callable[[], None]:
    """A function that runs training step number `step`."""

    def run() -> None:
        trainer.step_on_device.fill_(step)
        trainer.step_runner(step)

    return run


def _time_eager_steps(
    trainer: StackTrainer, timer: _Timer, deadline: float
) -> tuple[float, float, float, float]:
    """Mean seconds of a step and its relative standard error, then 0, 0 for compilation and capture.

    The time of a step is assumed to be proportional to its number of tokens. The first step allocates the moments
    and is not counted.
    """
    tokens = _tokens_per_step(trainer)  # (steps,)
    by_tokens = np.argsort(tokens, kind="stable")
    chosen = [int(by_tokens[int(q * (len(tokens) - 1))]) for q in QUANTILES]
    timer(_single_step(trainer, chosen[0]))
    per_token: list[float] = []  # seconds per token
    seconds: list[float] = []
    for step in chosen:
        if len(per_token) >= MIN_STEPS and time.perf_counter() > deadline:
            break
        seconds.append(timer(_single_step(trainer, step)))
        per_token.append(seconds[-1] / tokens[step])
    mean = sum(seconds) / sum(tokens[step] for step in chosen[: len(seconds)]) * tokens.mean()
    return float(mean), _relative_standard_error(per_token), 0.0, 0.0


def _time_captured_steps(
    trainer: StackTrainer, timer: _Timer, deadline: float
) -> tuple[float, float, float, float]:
    """Compile, capture and replay the most frequent length, then other lengths until the deadline.

    Returns:
        Mean seconds of a step, its relative standard error, seconds of compilation and of capture for all lengths.
    """
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
    further = compile_seconds[1:] or [FURTHER_COMPILATION * compile_seconds[0]]
    compilation = sum(compile_seconds) + float(np.mean(further)) * (len(lengths) - len(compile_seconds))
    return step, max(errors), compilation, float(np.mean(capture_seconds)) * len(lengths)


def _interpolate(replay_seconds: dict[int, float], lengths: np.ndarray) -> np.ndarray:
    """(lengths,) seconds on a line fitted to the measured lengths; with a single one, half of its time is fixed."""
    known = sorted(replay_seconds)
    if len(known) == 1:
        return replay_seconds[known[0]] * (0.5 + 0.5 * lengths / known[0])
    slope, intercept = np.polyfit(known, [replay_seconds[n] for n in known], 1)
    return np.maximum(intercept + slope * lengths, 0.0)


def _tokens_per_step(trainer: StackTrainer) -> np.ndarray:
    """(steps,) number of tokens in each step, without padding, summed over trials."""
    rows = trainer.train_loader.batch_rows  # (T, steps, B), -1 where a batch is not full
    lengths = trainer.train_loader.row_lengths[rows.clamp(min=0).long()] * (rows >= 0)
    total: Tensor = lengths.sum((0, 2))
    return total.cpu().numpy().astype(float)


def _relative_standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean, divided by the mean."""
    if len(values) < 2:
        return 0.0
    return float(np.std(values, ddof=1) / np.sqrt(len(values)) / np.mean(values))


@torch.no_grad()
def _time_evaluation(trainer: StackTrainer, timer: _Timer, deadline: float) -> float:
    """Seconds to evaluate all dev sets, extrapolated from some chunks by their tokens and from one trial's metrics."""
    trainer.model.eval()
    seconds = 0.0
    for loader in trainer.eval_loaders.values():
        sizes = np.array([chunk.inputs["input_ids"].numel() for chunk in loader.chunks], float)
        places = np.unique(np.linspace(0, len(sizes) - 1, CHUNKS).round().astype(int))[::-1]
        timed, tokens = 0.0, 0.0
        trainer.compute_logits(loader.chunks[:1])  # warm up
        for place in places:
            if tokens and time.perf_counter() > deadline:
                break
            timed += timer(partial(trainer.compute_logits, [loader.chunks[place]]))
            tokens += sizes[place]
        seconds += float(timed / tokens * sizes.sum())
        compute_scores = partial(score, trainer.data.metrics, loader.split.labels, loader.split.labels)
        compute_scores()  # the first call imports libraries
        seconds += timer(compute_scores) * len(trainer.trials)
    trainer.model.train()
    return seconds
