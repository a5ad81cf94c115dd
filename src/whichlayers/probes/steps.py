"""What a probe counts for in a run's progress. Imports no torch."""

from __future__ import annotations

from whichlayers.trial import Probe

PASS_STEPS = 40  # for its share of the pass through the encoder, beside a step for each epoch
WORD_STEPS = 20  # for a question about words


def steps_of(probe: Probe) -> int:
    """Not its optimiser steps, which cost next to nothing beside those of finetuning."""
    return PASS_STEPS + probe.max_epochs
