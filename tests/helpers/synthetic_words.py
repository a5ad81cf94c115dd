"""Points of the experiments on words as a study makes them, and scores in the shape of the paper's figures."""

from __future__ import annotations

import numpy as np
from fake_facts import FakeFacts

from whichlayers.study.expand import expand
from whichlayers.study.file import Study
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
    """Finetuning costs the upper third `drop` of accuracy, the bottom neurons `bottom`, and moves `shift` of the top
    neurons from the upper to the lower half."""

    def score(point: Point) -> float:
        trial, words = point.trial, point.trial.word_probe
        after = bool(trial.train_size)
        noise = np.random.default_rng(int(trial.id, 16) % 2**32).normal(0, sd)
        shared = np.random.default_rng(trial.seed).normal(0, sd)
        if words.measure == "spread":
            weight = np.ones(depth + 1)
            if after:
                weight[: (depth + 1) // 2] += shift
                weight[-((depth + 1) // 2) :] -= shift
            return float((weight / weight.sum())[words.layer] + noise / 10)
        if words.measure == "compression":
            return 4.0 + shared + noise
        if words.measure == "neurons":
            return 0.1 + abs(noise)
        level = {"bottom": 0.75, "random": 0.85, "top": 0.93}.get(words.neurons, 0.95)
        if words.neurons == "layer":
            level = 0.85 + 0.1 * np.sin(np.pi * (words.layer + 0.5) / (depth + 2))
            if after and words.layer > 0.75 * depth:
                level -= drop * (words.layer / depth - 0.75) / 0.25
        elif after and words.neurons == "bottom":
            level -= bottom
        if words.measure == "selectivity":
            level -= 0.5 if words.neurons == "top" else 0.8
        return float(level + shared + noise)

    return score
