"""Progress units of probes: how many steps of a run's progress each counts for. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable

from whichlayers.trial import Probe

# of a sentence-level probe, for its part of the forward pass; each epoch counts for 1 more
ENCODER_STEPS = 40
WORD_PROBE_STEPS = 20  # of a word probe

# called with the number of units of work that were completed since the last call
OnProgress = Callable[[int], None]


def probe_steps(probe: Probe) -> int:
    """Progress steps of a sentence-level probe.

    Not its optimizer steps, whose cost is negligible compared to those of finetuning.
    """
    return ENCODER_STEPS + probe.max_epochs
