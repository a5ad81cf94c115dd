"""How long a stack takes: found by building one, running a few of its steps and a part of its evaluation.

Nothing of it is kept. The steps are spread over the lengths of the stack's own batches, so that the mean over
them is the mean over the study's sentences. On a GPU a length is timed after it was compiled and captured,
and the time which that took is told by itself: a run pays it once, not at every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.data.metrics import score
from whichlayers.data.tokenize import TokenisedTask
from whichlayers.engine.cost import Pace
from whichlayers.engine.cuda_graphs import WARM_RUNS
from whichlayers.engine.results import EngineSettings
from whichlayers.engine.stack_trainer import StackRun
from whichlayers.engine.weight_change import weight_changes
from whichlayers.trial import Trial

QUANTILES = (0.5, 0.1, 0.9, 0.3, 0.7)  # of the steps by their work, in the order in which they are timed
LEAST_STEPS = 2
REPLAYS = 5  # of a captured length
CHUNKS = 4  # of evaluation that are timed
FURTHER_LENGTH = 0.6  # of the first compilation's time, where no second one was seen


def measure_pace(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    data: TokenisedTask,
    device: str | torch.device,
    settings: EngineSettings | None = None,
    seconds: float = 30.0,
) -> Pace:
    """Time a stack of these trials, in about `seconds`; more where two steps take longer than that."""
    device, settings = torch.device(device), settings or EngineSettings()
    deadline = time.perf_counter() + seconds
    encoder = encoder.to(device)  # type: ignore[arg-type]
    clock = _Clock(device)
    filled = settings.filled(trials)
    runs: list[StackRun] = []
    build = clock(lambda: runs.append(StackRun(filled, encoder, data, device, settings)))
    run = runs[0]
    run.stack.train()
    captured = run.runner.graphs is not None
    time_steps = _captured_steps if captured else _plain_steps
    step, error, compiling, capturing = time_steps(run, clock, deadline)
    evaluation = _evaluation(run, clock, deadline)
    ending = clock(lambda: weight_changes(run))
    return Pace(len(filled), build, compiling, capturing, step, error, evaluation, ending)


class _Clock:
    """Seconds that a call takes, on the device as well."""

    def __init__(self, device: torch.device):
        self.device = device

    def __call__(self, call: Callable[[], object]) -> float:
        began = time.perf_counter()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - began


def _take(run: StackRun, step: int) -> Callable[[], None]:
    def take() -> None:
        run.step_on_device.fill_(step)
        run.runner(step)

    return take


def _plain_steps(run: StackRun, clock: _Clock, deadline: float) -> tuple[float, float, float, float]:
    """A step's mean, judged by the tokens that it holds; its first run makes the moments and is not counted."""
    work = _tokens(run)  # (steps,)
    by_work = np.argsort(work, kind="stable")
    chosen = [int(by_work[int(q * (len(work) - 1))]) for q in QUANTILES]
    clock(_take(run, chosen[0]))
    paces: list[float] = []  # seconds a token
    seconds: list[float] = []
    for step in chosen:
        if len(paces) >= LEAST_STEPS and time.perf_counter() > deadline:
            break
        seconds.append(clock(_take(run, step)))
        paces.append(seconds[-1] / work[step])
    mean = sum(seconds) / sum(work[step] for step in chosen[: len(seconds)]) * work.mean()
    return float(mean), _standard_error(paces), 0.0, 0.0


def _captured_steps(run: StackRun, clock: _Clock, deadline: float) -> tuple[float, float, float, float]:
    """Compile, capture and replay the commonest length, then others while there is time."""
    lengths, counts = np.unique(run.runner.lengths, return_counts=True)
    order = [int(lengths[counts.argmax()])]
    order += [n for n in (int(lengths[-1]), int(lengths[0]), *lengths.tolist()) if n not in order]
    replayed: dict[int, float] = {}
    compiled: list[float] = []
    captured: list[float] = []
    spread: list[float] = []
    for length in dict.fromkeys(order):
        if compiled and time.perf_counter() + FURTHER_LENGTH * compiled[0] > deadline:
            break
        take = _take(run, int(np.flatnonzero(run.runner.lengths == length)[0]))
        cold = clock(take)
        warm = sum(clock(take) for _ in range(WARM_RUNS - 1))  # the last of them captures
        times = [clock(take) for _ in range(REPLAYS)]
        replayed[length] = float(np.median(times))
        spread.append(_standard_error(times))
        compiled.append(max(0.0, cold - replayed[length]))
        captured.append(warm)
    step = float(_between(replayed, lengths) @ counts / counts.sum())
    further = compiled[1:] or [FURTHER_LENGTH * compiled[0]]
    compiling = sum(compiled) + float(np.mean(further)) * (len(lengths) - len(compiled))
    return step, max(spread), compiling, float(np.mean(captured)) * len(lengths)


def _between(replayed: dict[int, float], lengths: np.ndarray) -> np.ndarray:
    """(lengths,) seconds: a straight line through what was measured; half fixed where that was one length."""
    known = sorted(replayed)
    if len(known) == 1:
        return replayed[known[0]] * (0.5 + 0.5 * lengths / known[0])
    slope, start = np.polyfit(known, [replayed[n] for n in known], 1)
    return np.maximum(start + slope * lengths, 0.0)


def _tokens(run: StackRun) -> np.ndarray:
    """(steps,) real tokens of each step, all trials together."""
    order = run.feed.order  # (T, steps, B), -1 where a batch is not full
    sizes = run.feed.sizes[order.clamp(min=0).long()] * (order >= 0)
    total: Tensor = sizes.sum((0, 2))
    return total.cpu().numpy().astype(float)


def _standard_error(values: Sequence[float]) -> float:
    """Of the mean, as a share of it."""
    if len(values) < 2:
        return 0.0
    return float(np.std(values, ddof=1) / np.sqrt(len(values)) / np.mean(values))


@torch.no_grad()
def _evaluation(run: StackRun, clock: _Clock, deadline: float) -> float:
    """All dev sets: some chunks stand for all, by their tokens, and one trial's metrics for those of all."""
    run.stack.eval()
    seconds = 0.0
    for feed in run.eval_feeds.values():
        sizes = np.array([chunk["input_ids"].numel() for chunk in feed.chunks], float)
        places = np.unique(np.linspace(0, len(sizes) - 1, CHUNKS).round().astype(int))[::-1]
        timed, tokens = 0.0, 0.0
        run._logits(SimpleNamespace(chunks=[feed.chunks[0]]))  # type: ignore[arg-type]  # to warm up
        for place in places:
            if tokens and time.perf_counter() > deadline:
                break
            chunk = feed.chunks[place]
            timed += clock(partial(run._logits, SimpleNamespace(chunks=[chunk])))  # type: ignore[arg-type]
            tokens += sizes[place]
        seconds += float(timed / tokens * sizes.sum())
        scores = partial(score, run.data.metrics, feed.split.labels, feed.split.labels)
        scores()  # the first call imports libraries
        seconds += clock(scores) * len(run.trials)
    run.stack.train()
    return seconds
