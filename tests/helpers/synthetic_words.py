"""Points of the word-level probing experiments, and scores shaped like the figures of Durrani et al. 2021."""

from __future__ import annotations

import numpy as np
from fake_facts import FakeFacts

from whichlayers.study.expand import expand
from whichlayers.study.study_file import Study
from whichlayers.trial import Point

WORD_KINDS = [
    {"kind": "word_probing"},
    {"kind": "neurons", "shares": [0.05, 0.1]},
    {"kind": "selectivity", "finetuned_on": []},
]


def word_points(
    models=("bert-base-uncased", "roberta-base"),
    tasks=("SST-2", "RTE"),
    corpora=("UD-EWT:xpos", "CoNLL-2000:chunk", "PMB:sem"),
    kinds=WORD_KINDS,
    trials=3,
    depth=6,
) -> list[Point]:
    """Points of a study with these experiments, as `expand` makes them."""
    study = Study(
        name="words",
        models=list(models),
        tasks=list(tasks),
        corpora=list(corpora),
        experiments=list(kinds),
        trials=trials,
    )
    return expand(study, FakeFacts(depth=depth, rows=2490))


def forgetting(depth: int = 6, drop: float = 0.3, shift: float = 0.5, bottom: float = 0.3, sd: float = 0.004):
    """Scores of models in which finetuning changes word-level knowledge.

    Args:
        depth: Number of layers.
        drop: Accuracy that finetuning costs at the last layer, falling to 0 at three quarters of the depth.
        shift: How much finetuning moves the distribution of the top neurons from the upper to the lower half.
        bottom: Accuracy that finetuning costs the bottom neurons.
        sd: Standard deviation of the noise.
    """

    def score(point: Point) -> float:
        trial, probe = point.trial, point.trial.word_probe
        finetuned = bool(trial.train_size)
        noise = np.random.default_rng(int(trial.id, 16) % 2**32).normal(0, sd)
        shared = np.random.default_rng(trial.seed).normal(0, sd)
        if probe.measure == "spread":
            weight = np.ones(depth + 1)
            if finetuned:
                weight[: (depth + 1) // 2] += shift
                weight[-((depth + 1) // 2) :] -= shift
            return float((weight / weight.sum())[probe.layer] + noise / 10)
        if probe.measure == "compression":
            return 4.0 + shared + noise
        if probe.measure == "neurons":
            return 0.1 + abs(noise)
        level = {"bottom": 0.75, "random": 0.85, "top": 0.93}.get(probe.neurons, 0.95)
        if probe.neurons == "layer":
            level = 0.85 + 0.1 * np.sin(np.pi * (probe.layer + 0.5) / (depth + 2))
            if finetuned and probe.layer > 0.75 * depth:
                level -= drop * (probe.layer / depth - 0.75) / 0.25
        elif finetuned and probe.neurons == "bottom":
            level -= bottom
        if probe.measure == "selectivity":
            level -= 0.5 if probe.neurons == "top" else 0.8
        return float(level + shared + noise)

    return score
