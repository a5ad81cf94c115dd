"""Facts of the section about gte-small of reproduction.md, computed from results/."""

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

from whichlayers.analysis.intervals import paired_difference

GTE, KS = "gte-small", (0, 3, 6, 9, 12)
ORDER, DROPPED = "gte-small-order", (1, 2, 3, 4, 6, 9)


def small_encoder() -> Iterator[str]:
    """A BERT of hidden size 384 that was further trained as a sentence encoder, on a CPU."""
    yield f"{trials(GTE)} trials, three per point"
    yield curve_row(GTE, "SST-2, 500 examples, accuracy", "SST-2", 500, KS)
    yield curve_row(GTE, "CoLA, 500, Matthews correlation", "CoLA", 500, KS)
    none, half, every = (mean(GTE, experiment="incremental", task="SST-2", x=k) for k in (0, 6, 12))
    whole = gain(GTE, "SST-2", 500)
    yield f"{100 * (half - none) / (every - none):.0f}% of the gain of {pts(whole.gain)} points"
    yield f"({pts(whole.low)} to {pts(whole.high)})"
    d = paired_difference(*(values(GTE, experiment="incremental", task="CoLA", x=k) for k in (6, 12)))
    assert d is not None
    yield f"by {pts(d.mean)} points ({pts(d.low)} to {pts(d.high)}, not corrected for the choice of k)"
    probes = {layer: pts(mean(GTE, experiment="probing", task="CoLA", x=layer)) for layer in (5, 12)}
    assert max(range(1, 13), key=lambda layer: mean(GTE, experiment="probing", task="CoLA", x=layer)) == 5
    yield f"{probes[5]} at layer 5, {probes[12]} at layer 12"
    assert (verdict(GTE, "S1"), verdict(GTE, "L1"), verdict(GTE, "S4")) == (
        "holds",
        "holds",
        "not enough trials",
    )
    moved = test_of(GTE, "S1", "SST-2, 500 examples")
    yield f"{100 * (math.exp(moved.effect) - 1):.0f}% more than those of the lower half"
    yield from _order_facts()


def _order_facts() -> Iterator[str]:
    """Number and order of the layers, on SST-2 with 500 examples."""
    yield f"{trials(ORDER)} trials of another study"
    for part in ("top", "bottom"):
        scores = [pts(mean(ORDER, experiment="prune", condition=part, x=n)) for n in DROPPED]
        yield f"| SST-2, {part} layers dropped | {' | '.join(scores)} |"
    yield f"With all twelve layers the model reaches {pts(mean(ORDER, experiment='prune', condition='all pretrained'))}"
    assert [verdict(ORDER, claim) for claim in ("D4", "P1", "T4", "S1")] == [
        "holds",
        "not enough trials",
        "holds",
        "holds",
    ]
    lower = test_of(ORDER, "D4", "bottom 6 against top 6")
    yield f"costs {pts_range(-lower.effect, -lower.high, -lower.low)} more than dropping the top six (D4)"
    few = [pts(mean(ORDER, experiment="prune", condition=part, x=9)) for part in ("bottom", "top")]
    yield f"the upper three layers alone reach {few[0]} and the lower three {few[1]}"
    kept = test_of(ORDER, "P1", "SST-2")
    yield f"misses 98% of the score by {pts(-kept.effect)} points"
    yield f"(90% interval {pts(-kept.high)} to {pts(-kept.low)})"
    redrawn = values(GTE, experiment="incremental", task="SST-2", x=6)
    d = paired_difference(redrawn, values(ORDER, experiment="prune", condition="top", x=6))
    assert d is not None
    yield f"better by {pts_range(d.mean, d.low, d.high)} than without these layers"
    none, _ = permutation_baselines(ORDER, "SST-2")
    yield f"reach {permuted_mean(ORDER)} on average, where a model without pretrained layers reaches {none}"
    fraction = test_of(ORDER, "T4", "fraction of the gain")
    yield f"{100 * fraction.effect:.0f}% of the gain ({100 * fraction.low:.0f} to {100 * fraction.high:.0f})"
