"""Description length of tags given hidden states: the online code of Voita & Titov (2020).

The words, in random order, are divided into portions. The tags of the first portion are encoded with a uniform code,
those of every later portion with a probe trained on all portions before it. The sum of the code lengths measures both
how accurately a probe predicts the tags and how few examples it needs. It complements the selectivity of control
tasks.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.probes.evaluation import code_lengths
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.probe_specs import ProbeSpec, ProbeTraining
from whichlayers.probes.probe_trainer import fit_probes
from whichlayers.probes.progress import OnProgress

PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
MIN_STEPS = 100  # minimum number of training steps; `epochs` is increased for small portions


@dataclass(frozen=True)
class CodeLength:
    """Online code length of the tags of a corpus."""

    bits: float
    uniform_bits: float  # without a probe: log2(n_tags) per word
    portion_bits: tuple[float, ...]

    @property
    def compression(self) -> float:
        """Uniform code length divided by online code length."""
        return self.uniform_bits / self.bits


def online_code(
    states: HiddenStates,
    labels: np.ndarray,
    n_tags: int,
    specs: Sequence[ProbeSpec],
    *,
    portions: Sequence[float] = PORTIONS,
    training: ProbeTraining | None = None,
    on_progress: OnProgress | None = None,
) -> list[CodeLength]:
    """The online code length of the labels for every probe.

    Args:
        states: Hidden states of n words.
        labels: (n,) or (tasks, n), each 0 to n_tags - 1.
        n_tags: Number of tags.
        specs: The probes. The order of the words depends on a probe's seed.
        portions: Where each portion ends, as a fraction of the words.
        training: Settings shared by all probes.
        on_progress: Called with the number of trained probes after each portion.
    """
    training = training or ProbeTraining()
    if n_tags < 2:
        raise WhichlayersError(f"n_tags = {n_tags}: an online code needs at least 2 tags")
    ends = _portion_ends(portions, states.n_examples)
    orders = {s.seed: rng.permutation(s.seed, "online code", states.n_examples) for s in specs}
    portion_bits: list[list[float]] = [[ends[0] * math.log2(n_tags)] for _ in specs]
    for start, end in itertools.pairwise(ends):
        seen = {seed: order[:start] for seed, order in orders.items()}
        probes = fit_probes(states, labels, n_tags, specs, _with_min_steps(training, start), rows=seen)
        for seed, order in orders.items():
            indices = [p for p, spec in enumerate(specs) if spec.seed == seed]
            nats = code_lengths(states, labels, [probes[p] for p in indices], order[start:end])
            for p, value in zip(indices, nats.tolist(), strict=True):
                portion_bits[p].append(value / math.log(2))
        if on_progress is not None:
            on_progress(len(specs))
    uniform = states.n_examples * math.log2(n_tags)
    return [CodeLength(sum(bits), uniform, tuple(bits)) for bits in portion_bits]


def _portion_ends(portions: Sequence[float], n: int) -> list[int]:
    """Number of words up to the end of each portion; empty portions are dropped."""
    if not portions or portions[-1] != 1 or portions[0] <= 0 or list(portions) != sorted(set(portions)):
        raise WhichlayersError(f"portions must increase from a value above 0 to 1, got {list(portions)}")
    return sorted({max(1, round(fraction * n)) for fraction in portions})


def _with_min_steps(training: ProbeTraining, n: int) -> ProbeTraining:
    """The settings with as many epochs as MIN_STEPS steps on n words require."""
    steps = math.ceil(n / training.batch_size)
    return dataclasses.replace(training, epochs=max(training.epochs, math.ceil(MIN_STEPS / steps)))
