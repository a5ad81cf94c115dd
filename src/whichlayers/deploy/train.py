"""Finetune a variant with one or several seeds, and evaluate what was saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.runs.assets import Assets
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from whichlayers.data.tasks import Split
    from whichlayers.data.tokenize import TokenizedTask
    from whichlayers.deploy.text_model import TextModel
    from whichlayers.engine.results import OnStep

HELD_OUT = 0.1  # fraction of the training rows that choose the best of several seeds
STACK = 4  # seeds that are trained together
RESAMPLES = 1000


@dataclass(frozen=True)
class TrainedModel:
    """A finetuned encoder with its linear layer, on the CPU in float32."""

    trial: Trial
    encoder: PreTrainedModel
    weight: Tensor  # (C, H)
    bias: Tensor | None  # (C,)
    held_out: tuple[float, float] | None  # metric and loss on the held-out rows; None if there are none
    adapter: Mapping[str, Tensor] = field(default_factory=dict)  # weights of its adapters, which are merged


@dataclass(frozen=True)
class Score:
    """A score on the dev set with a 95% bootstrap interval over its rows."""

    metric: str
    value: float
    low: float
    high: float
    rows: int


def held_out_rows(rows: int) -> int:
    """Number of rows that are held out of this many training rows."""
    return max(1, round(HELD_OUT * rows))


def hold_out(data: TokenizedTask, seed: int) -> TokenizedTask:
    """The task with a random part of its training rows as the only dev set, and without them for training."""
    from whichlayers.data.batches import select_rows

    n = len(data.train)
    count = held_out_rows(n)
    if count >= n:
        raise WhichlayersError(f"{n} training examples are too few to hold some of them out: use one seed")
    order = rng.permutation(seed, "held out", n)
    held, rest = np.sort(order[:count]), np.sort(order[count:])
    return dataclasses.replace(
        data, train=select_rows(data.train, rest), evals={"": select_rows(data.train, held)}
    )


def finetune_seeds(
    trials: Sequence[Trial], assets: Assets, held_out: bool, device: str, on_step: OnStep | None = None
) -> Iterator[TrainedModel]:
    """Finetune trials that differ in their seeds, a few at a time.

    Args:
        trials: The trials.
        assets: Loads the model and the data.
        held_out: Hold out a part of the training rows, the same for all trials.
        device: Where to train.
        on_step: Called with the number of steps just completed.

    Yields:
        Each trained model, in the order of `trials`.

    Raises:
        WhichlayersError: A trial failed, for example because its loss was not finite.
    """
    data = assets.data(trials[0])
    if held_out:
        data = hold_out(data, min(t.seed for t in trials))
        trials = [dataclasses.replace(t, train_size=min(t.train_size, len(data.train))) for t in trials]
    for start in range(0, len(trials), STACK):
        yield from _finetune_stack(trials[start : start + STACK], assets, data, held_out, device, on_step)


def _finetune_stack(
    trials: Sequence[Trial],
    assets: Assets,
    data: TokenizedTask,
    held_out: bool,
    device: str,
    on_step: OnStep | None,
) -> Iterator[TrainedModel]:
    from whichlayers.engine.finetune import finetune

    # evaluated once: a dev set after every epoch would take time and change nothing
    trials = [
        dataclasses.replace(t, training=dataclasses.replace(t.training, evaluate="end")) for t in trials
    ]
    encoder = assets.encoder(trials[0])
    weights: dict[str, dict[str, Tensor]] = {}
    results = finetune(
        trials,
        encoder,
        data,
        device=device,
        on_step=on_step,
        on_trained=lambda result, values: weights.update({result.trial_id: values}),
        with_head=True,
        with_weight_changes=False,
    )
    for trial, result in zip(trials, results, strict=True):
        if result.error is not None:
            raise WhichlayersError(f"finetuning with seed {trial.seed} failed: {result.error}")
        last = result.epochs[-1]
        score = (last.metrics[data.metric], last.dev_loss) if held_out else None
        yield _trained(trial, encoder, weights.pop(result.trial_id), score)


def _trained(
    trial: Trial, encoder: PreTrainedModel, weights: dict[str, Tensor], held_out: tuple[float, float] | None
) -> TrainedModel:
    from whichlayers.engine.export_weights import with_weights
    from whichlayers.engine.freezing import ADAPTER
    from whichlayers.models.surgery import apply_surgery

    weight, bias = weights.pop("classifier.weight"), weights.pop("classifier.bias", None)
    adapter = {name: weights.pop(name) for name in list(weights) if f".{ADAPTER}." in name}
    # frozen parameters stay as they are here
    base = apply_surgery(encoder, trial.surgery, trial.seed_of("init"))
    return TrainedModel(trial, with_weights(base, weights).to("cpu"), weight, bias, held_out, adapter)  # type: ignore[arg-type]


def best_seed(models: Iterator[TrainedModel]) -> TrainedModel:
    """The model with the highest score on the held-out rows; of equal ones, that with the lowest loss on them."""

    def quality(model: TrainedModel) -> tuple[float, float]:
        assert model.held_out is not None
        score, loss = model.held_out
        return score, -loss

    best = next(models)
    for model in models:  # only the best one so far stays in memory
        if quality(model) > quality(best):
            best = model
    return best


def evaluate(model: TextModel, split: Split, metric: str) -> Score:
    """The score of a model on a split of labeled texts."""
    from whichlayers.data.metrics import score

    logits = model.logits(split.texts, split.pairs)
    predictions = logits.argmax(1) if model.labels else logits[:, 0]
    generator = np.random.default_rng(0)
    resampled = []
    for _ in range(RESAMPLES):
        rows = generator.integers(0, len(split), len(split))
        resampled.append(score((metric,), predictions[rows], split.labels[rows])[metric])
    low, high = np.nanquantile(resampled, [0.025, 0.975])
    value = score((metric,), predictions, split.labels)[metric]
    return Score(metric, float(value), float(low), float(high), len(split))
