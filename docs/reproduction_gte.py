"""Facts of the section about gte-small of reproduction.md, computed from results/."""

from __future__ import annotations

import math
from collections.abc import Iterator

from reproduction_numbers import curve_row, gain, mean, pts, test_of, trials, values, verdict

from whichlayers.analysis.intervals import paired_difference

GTE, KS = "gte-small", (0, 3, 6, 9, 12)


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
