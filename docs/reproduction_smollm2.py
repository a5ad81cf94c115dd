"""Facts of the section about SmolLM2-135M-Instruct of reproduction.md, computed from results/."""

from __future__ import annotations

import math
from collections.abc import Iterator

from reproduction_numbers import (
    curve_row,
    gain,
    mean,
    permutation_baselines,
    permuted_mean,
    pts,
    pts_range,
    test_of,
    trials,
    values,
    verdict,
)

from whichlayers.analysis.intervals import PairedDifference, paired_difference

SMOLLM2, KS = "smollm2-135m-instruct", (0, 8, 15, 22, 30)
WORDS, STANDARDIZED = "smollm2-gte-small-words", "smollm2-gte-small-words-standardized"
WITH_BOS = "smollm2-words-bos"
ORDER = "smollm2-135m-instruct-order"


def decoder() -> Iterator[str]:
    """A decoder of 30 layers with weights from a 4-bit file, on a CPU."""
    yield f"{trials(SMOLLM2)} trials, three per point"
    yield curve_row(SMOLLM2, "SST-2, 500 examples, accuracy", "SST-2", 500, KS)
    yield curve_row(SMOLLM2, "CoLA, 500, Matthews correlation", "CoLA", 500, KS)
    yield f"layers 9 to 15 add {_points(_step('SST-2', 8, 15))}"
    whole = gain(SMOLLM2, "SST-2", 500)
    yield f"the gain from pretraining is {pts_range(whole.gain, whole.low, whole.high)}"
    yield f"Layers 16 to 30 add {_points(_step('SST-2', 15, 30))}"
    yield f"What layers 1 to 8 add is too noisy to tell: {_points(_step('SST-2', 0, 8))}"
    yield f"On CoLA it is {_points(_step('CoLA', 15, 30))}"
    for task in ("SST-2", "CoLA"):
        best = max(range(1, 31), key=lambda layer: mean(SMOLLM2, experiment="probing", task=task, x=layer))
        scores = [pts(mean(SMOLLM2, experiment="probing", task=task, x=layer)) for layer in (best, 30)]
        yield f"{scores[0]} at layer {best} and {scores[1]} at layer 30 on {task}"
    moved = test_of(SMOLLM2, "S1", "SST-2, 500 examples")
    assert (verdict(SMOLLM2, "S1"), verdict(SMOLLM2, "S4")) == ("holds", "not enough trials")
    yield f"upper half changes {100 * (math.exp(moved.effect) - 1):.0f}% more than the lower"
    yield from _order_facts()
    yield from _word_facts()


def _order_facts() -> Iterator[str]:
    """Number and order of the layers, on SST-2 with 500 examples."""
    yield f"{trials(ORDER)} trials of another study"
    parts = ("all pretrained", "top", "bottom")
    whole, top, bottom = (pts(mean(ORDER, experiment="prune", condition=part)) for part in parts)
    yield f"The lower 18 layers alone reach {top}, the upper 18 {bottom}, and all thirty {whole}"
    assert [verdict(ORDER, claim) for claim in ("D4", "P1", "T4", "S1")] == [
        "holds",
        "not enough trials",
        "holds",
        "holds",
    ]
    lower = test_of(ORDER, "D4", "bottom 12 against top 12")
    yield f"{pts_range(-lower.effect, -lower.high, -lower.low)} more"
    kept = test_of(ORDER, "P1", "SST-2")
    yield f"{pts(kept.effect)} points above 98% of its score (90% interval {pts(kept.low)} to {pts(kept.high)})"
    none, _ = permutation_baselines(ORDER, "SST-2")
    yield f"reach {permuted_mean(ORDER)} on average, a model without pretrained layers {none}"
    fraction = test_of(ORDER, "T4", "fraction of the gain")
    yield f"by {-100 * fraction.effect:.0f}% of the gain ({-100 * fraction.high:.0f} to {-100 * fraction.low:.0f})"


def _step(task: str, low: int, high: int) -> PairedDifference:
    found = paired_difference(
        *(values(SMOLLM2, experiment="incremental", task=task, x=k) for k in (high, low))
    )
    assert found is not None
    return found


def _points(difference: PairedDifference) -> str:
    return pts_range(difference.mean, difference.low, difference.high)


def _word_facts() -> Iterator[str]:
    """Parts of speech in each layer of the decoder and of gte-small, not standardized and standardized."""
    yield f"{trials(WORDS) + trials(STANDARDIZED) + trials(WITH_BOS)} trials, three per point, as pretrained"
    for model, layers in (("gte-small", (3, 12)), (SMOLLM2, (11, 12))):
        for study in (WORDS, STANDARDIZED):
            assert _best_layer(study, model) == layers[0]
        before, after = (
            [pts(_word_accuracy(study, model, layer)) for layer in layers] for study in (WORDS, STANDARDIZED)
        )
        yield (
            f"{before[0]} at layer {layers[0]} and {before[1]} at layer {layers[1]} "
            f"(standardized: {after[0]} and {after[1]})"
        )
    with_bos = [pts(_word_accuracy(WITH_BOS, SMOLLM2, layer)) for layer in (11, 12, 20)]
    yield f"it disappears: {with_bos[0]} at layer 11, {with_bos[1]} at layer 12 and still {with_bos[2]} at layer 20"
    last = [pts(_word_accuracy(study, SMOLLM2, 30)) for study in (WORDS, STANDARDIZED)]
    yield f"{last[0]} at layer 30 (standardized: {last[1]})"


def _word_accuracy(study: str, model: str, layer: int) -> float:
    return mean(study, experiment="word_probing", model=model, x=layer)


def _best_layer(study: str, model: str) -> int:
    depth = 30 if model == SMOLLM2 else 12
    return max(range(depth + 1), key=lambda n: _word_accuracy(study, model, n))
