"""Choice of the sizes that steps are padded to."""

import itertools

import numpy as np
import pytest

from whichlayers.engine.compilation import COMPILE_SECONDS
from whichlayers.engine.dataloader import LENGTH_STEP
from whichlayers.engine.step_sizes import CAPTURE_SECONDS, choose_sizes


def test_a_length_is_compiled_where_it_saves_more_than_it_costs():
    lengths = np.array([5] * 900 + [17] * 3 + [40] * 1500 + [60] * 20)
    chosen = choose_sizes(lengths, seconds_per_unit=1e-3)
    assert (chosen >= lengths).all()
    assert chosen[:900].tolist() == [16] * 900, "padded to 48 they would take 29 s more"
    assert chosen[900:903].tolist() == [48] * 3, "a compilation does not pay for three steps"
    assert chosen[903:2403].tolist() == [48] * 1500
    assert chosen[2403:].tolist() == [64] * 20, "the longest cannot be padded to another length"
    assert set(choose_sizes(lengths, seconds_per_unit=1e-5).tolist()) == {64}, (
        "no compilation pays in a small model"
    )
    assert set(choose_sizes(lengths, 1e-4, known={16, 48}).tolist()) == {16, 48, 64}, (
        "these are compiled already"
    )
    assert set(choose_sizes(lengths, 1e-4, compile_seconds=1.8).tolist()) == {16, 48, 64}, (
        "ten stacks share the cost"
    )


@pytest.mark.parametrize("seed", range(5))
def test_no_other_choice_of_lengths_costs_less(seed):
    rng = np.random.default_rng(seed)
    lengths, rate, known = rng.integers(1, 90, 1200), 10 ** rng.uniform(-4, -2), {32, 64}

    def cost(chosen):
        padded = np.array([min(k for k in chosen if k >= n) for n in lengths])
        rounded = -(-lengths // LENGTH_STEP) * LENGTH_STEP
        each = sum(CAPTURE_SECONDS + (k not in known) * COMPILE_SECONDS for k in chosen)
        return each + rate * (padded - rounded).sum()

    candidates = range(LENGTH_STEP, 97, LENGTH_STEP)
    choices = [c for n in range(1, 7) for c in itertools.combinations(candidates, n) if max(c) == 96]
    chosen = tuple(sorted(set(choose_sizes(lengths, rate, known).tolist())))
    assert cost(chosen) == pytest.approx(min(map(cost, choices)))
