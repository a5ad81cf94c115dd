"""How many bits the tags cost to someone who has the states: the online code of Voita & Titov (2020).

The words, in a random order, are sent in portions. The first portion's tags are sent with a uniform code. Each
later one is sent with the code of a probe that was trained on all portions before it. What a good representation
saves, it saves early: with few examples. A second answer to the question that control tasks ask, and one number
for both how well and how easily tags can be read.
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
from whichlayers.probes.elastic_net import OnStep, ProbeTraining, Problem, code_lengths, fit_probes
from whichlayers.probes.word_table import WordTable

PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
LEAST_STEPS = 100  # a probe that has seen few words goes over them more often than `epochs` says


@dataclass(frozen=True)
class CodeLength:
    bits: float
    uniform_bits: float  # without the states: log2 of the number of tags for every word
    blocks: tuple[float, ...]  # bits of each portion

    @property
    def compression(self) -> float:
        return self.uniform_bits / self.bits

    @property
    def nats(self) -> float:
        return self.bits * math.log(2)


def online_code(
    table: WordTable,
    labels: np.ndarray,
    n_tags: int,
    problems: Sequence[Problem],
    *,
    portions: Sequence[float] = PORTIONS,
    training: ProbeTraining | None = None,
    on_step: OnStep | None = None,
) -> list[CodeLength]:
    """The code length of the table's labels for every problem. `portions`: where each ends, as a share of the
    words. The order of the words depends on a problem's seed; `on_step` counts probes trained, one a portion."""
    training = training or ProbeTraining()
    if n_tags < 2:
        raise WhichlayersError(f"a code for {n_tags} tags costs nothing: there must be two or more")
    ends = _ends(portions, table.n)
    orders = {p.seed: rng.permutation(p.seed, "online code", table.n) for p in problems}
    blocks: list[list[float]] = [[ends[0] * math.log2(n_tags)] for _ in problems]
    for start, end in itertools.pairwise(ends):
        seen = {seed: order[:start] for seed, order in orders.items()}
        probes = fit_probes(table, labels, n_tags, problems, _longer(training, start), rows=seen)
        for seed, order in orders.items():
            places = [p for p, problem in enumerate(problems) if problem.seed == seed]
            nats = code_lengths(table, labels, [probes[p] for p in places], order[start:end])
            for p, value in zip(places, nats.tolist(), strict=True):
                blocks[p].append(value / math.log(2))
        if on_step is not None:
            on_step(len(problems))
    uniform = table.n * math.log2(n_tags)
    return [CodeLength(sum(mine), uniform, tuple(mine)) for mine in blocks]


def _ends(portions: Sequence[float], n: int) -> list[int]:
    """How many words each portion ends at; portions that would be empty are left out."""
    if not portions or portions[-1] != 1 or portions[0] <= 0 or list(portions) != sorted(set(portions)):
        raise WhichlayersError(f"portions must rise from above 0 to 1, got {list(portions)}")
    return sorted({max(1, round(share * n)) for share in portions})


def _longer(training: ProbeTraining, n: int) -> ProbeTraining:
    steps = math.ceil(n / training.batch_size)
    return dataclasses.replace(training, epochs=max(training.epochs, math.ceil(LEAST_STEPS / steps)))
