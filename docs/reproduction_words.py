"""Facts of the section "Word-level probing" of reproduction.md, computed from results/."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from reproduction_numbers import (
    MPNET,
    RESULTS,
    SMALL,
    claims,
    mean,
    points,
    pts,
    test_of,
    trials,
    values,
    verdict,
)

from whichlayers.analysis.intervals import paired_difference, t_interval
from whichlayers.analysis.published import published_pruning, published_word_probing

CORPORA = {"UD-EWT:xpos": "parts of speech", "CoNLL-2000:chunk": "chunks", "PMB:sem": "semantic tags"}
SHARES = {"UD-EWT:xpos": 5, "CoNLL-2000:chunk": 10, "PMB:sem": 5}
FINETUNED = ("SST-2", "CoLA", "RTE", "MRPC", "QNLI")
UPPER = (10, 11, 12)


def word_probing() -> Iterator[str]:
    """Layers, neurons and dropped layers."""
    for study in (f"{SMALL}-words", f"{MPNET}-words"):
        assert trials(study) == 1827
        assert (points(study).groupby(["experiment", "condition", "task", "x"])["seed"].nunique() == 3).all()
    yield "1,827 trials per model, three per point"
    yield f"({trials(SMALL + '-semantic-tags')} trials on two CPU cores"
    for model in (SMALL, MPNET):
        for corpus, name in CORPORA.items():
            cells = [pts(upper_change(model, corpus, task)) for task in FINETUNED]
            yield f"| {model}, {name} | {' | '.join(cells)} |"
    yield from _layer_facts()
    yield from _neuron_facts()
    yield from _pruning_facts()


def upper_change(model: str, corpus: str, task: str, layers: tuple[int, ...] = UPPER) -> float:
    after, before = (
        np.mean(
            [
                mean(f"{model}-words", experiment="word_probing", task=corpus, finetuned_on=t, x=x)
                for x in layers
            ]
        )
        for t in (task, "")
    )
    return float(after - before)


def _layer_facts() -> Iterator[str]:
    large, small = claims(f"{MPNET}-words")["D1"], claims(f"{SMALL}-words")["D1"]
    holds = sum(test.verdict == "holds" for test in large.tests)
    assert verdict(f"{MPNET}-words", "D1") == "not enough trials"
    yield f"{holds} of {len(large.tests)} tests hold, and none fails"
    assert not any(test.verdict == "does not hold" for test in large.tests)
    assert verdict(f"{SMALL}-words", "D1") == "does not hold"
    (failed,) = (test for test in small.tests if test.verdict == "does not hold")
    assert failed.about == "PMB:sem, 12,096 examples after QNLI: upper quarter of the layers"
    changes = {(c, t): upper_change(SMALL, c, t) for c in CORPORA for t in FINETUNED}
    assert max(changes.values()) < 0
    assert [key for key, v in changes.items() if v < -0.01] == [("CoNLL-2000:chunk", "SST-2")]
    yield "only chunks after SST-2 by a point or more; for semantic tags after QNLI a drop of one point is ruled out"
    lower = [
        abs(upper_change(m, c, t, tuple(range(7))))
        for m in (SMALL, MPNET)
        for c in CORPORA
        for t in FINETUNED
    ]
    yield f"The lower half of either model changes by less than {math.ceil(max(lower) * 1000) / 10:.1f} points on any task"
    for model in (SMALL, MPNET):
        for corpus in CORPORA:
            by_task = {t: upper_change(model, corpus, t) for t in FINETUNED}
            assert min(by_task, key=by_task.get) == "SST-2"
    peaks = {}
    for model in (MPNET, SMALL):
        curves = {
            c: [
                mean(f"{model}-words", experiment="word_probing", task=c, finetuned_on="", x=x)
                for x in range(13)
            ]
            for c in CORPORA
        }
        top = [int(np.argmax(curve)) for curve in curves.values()]
        lost = [max(curve) - curve[12] for curve in curves.values()]
        peaks[model] = (top, [pts(max(curve)) for curve in curves.values()], lost)
    top, score, lost = peaks[MPNET]
    assert set(top) == {4}
    yield f"the accuracy peaks at layer 4 ({score[0]}, {score[1]} and {score[2]} for parts of speech, chunks and semantic tags) and is {pts(min(lost), 0)} to {pts(max(lost), 0)} points lower at layer 12"
    top, score, lost = peaks[SMALL]
    assert set(top) == {8, 9}
    yield f"it peaks at layers 8 and 9 ({', '.join(score)}), and layer 12 is within {math.ceil(max(lost) * 1000) / 10:.1f} points"


def _neuron_facts() -> Iterator[str]:
    for model in (SMALL, MPNET):
        for corpus, name in CORPORA.items():
            study = f"{SMALL}-semantic-tags" if (model, corpus) == (SMALL, "PMB:sem") else f"{model}-words"
            share = SHARES[corpus]

            def at(
                experiment: str, condition: str, x: float, study: str = study, corpus: str = corpus
            ) -> float:
                return mean(
                    study, experiment=experiment, condition=f"pretrained: {condition}", x=x, task=corpus
                )

            cells = [
                pts(at("neurons", c, x))
                for c, x in (("all neurons", 100), ("top", share), ("random", share), ("bottom", share))
            ]
            smallest = pts(mean(study, experiment="smallest_set", condition="pretrained", task=corpus), 0)
            selective = [pts(at("selectivity", c, x)) for c, x in (("all neurons", 100), ("top", share))]
            sets = "sets of " if (model, corpus) == (SMALL, "UD-EWT:xpos") else ""
            yield f"| {model}, {name}, {sets}{share}% | {' | '.join(cells)} | {smallest}% | {', '.join(selective)} |"
            assert float(selective[1]) > float(selective[0])
    for corpus, name in CORPORA.items():
        found = published_word_probing("bert", corpus, "")
        cells = [
            pts(found[q])
            for q in ("accuracy all neurons", "top", "bottom", "selectivity all", "selectivity selected")
        ]
        share = f"{SHARES[corpus]}%"
        yield f"| BERT, published: {name}, {share} | {cells[0]} | {cells[1]} | | {cells[2]} | {share} | {cells[3]}, {cells[4]} |"
    gaps, random = [], []
    for corpus in CORPORA:
        study = f"{SMALL}-semantic-tags" if corpus == "PMB:sem" else f"{SMALL}-words"
        top, bottom, chance = (
            mean(study, experiment="neurons", condition=f"pretrained: {c}", task=corpus)
            for c in ("top", "bottom", "random")
        )
        gaps.append(top - bottom)
        random.append(top - chance)
    assert max(random) < 0.01
    yield f"the bottom neurons are {pts(min(gaps), 0)} to {pts(max(gaps), 0)} points below the top neurons"
    codes, control = _compressions()
    yield f"the online code of the tags is {min(codes):.0f} to {max(codes):.0f} times shorter than a uniform code, that of the control task {min(control):.1f} to {max(control):.1f} times"
    spread = points(f"{MPNET}-words").query(
        "experiment == 'neuron_spread' and finetuned_on == '' and ranking == 'lca'"
    )
    layers = spread.groupby(["task", "x"])["value"].mean().unstack("x")
    assert (layers.loc[:, 1:4].sum(axis=1) > 0.5).all()
    assert layers[12].max() < 0.0005
    yield "More than half of the top neurons are in layers 1 to 4, none in layer 12"
    yield from _shift_facts()
    probeless = [
        pts(mean(s, experiment="neurons", condition="pretrained: top, probeless", task=c))
        for s, c in ((f"{SMALL}-words", "UD-EWT:xpos"), (f"{SMALL}-semantic-tags", "PMB:sem"))
    ]
    chance = [
        pts(mean(s, experiment="neurons", condition="pretrained: random", task=c))
        for s, c in ((f"{SMALL}-words", "UD-EWT:xpos"), (f"{SMALL}-semantic-tags", "PMB:sem"))
    ]
    yield f"its top 5% in carryover-bert-small reach {probeless[0]} for parts of speech and {probeless[1]} for semantic tags, less than random neurons ({chance[0]} and {chance[1]})"


def _compressions() -> tuple[list[float], list[float]]:
    """Compression of the tags and of the control task with all neurons, for every model and corpus."""
    codes, control = [], []
    for study in (f"{SMALL}-words", f"{MPNET}-words", f"{SMALL}-semantic-tags"):
        rows = pd.read_csv(RESULTS / study / "results.csv.gz").query(
            "experiment == 'description_length' and condition == 'pretrained: all neurons'"
        )
        rows = rows[(rows["task"] != "PMB:sem") | (study != f"{SMALL}-words")]
        means = rows.groupby("task")[["compression", "control_compression"]].mean()
        codes += list(means["compression"])
        control += list(means["control_compression"])
    return codes, control


def _shift_facts() -> Iterator[str]:
    shifts = []
    for model in (SMALL, MPNET):
        rows = points(f"{model}-words").query("experiment == 'neuron_spread' and ranking == 'lca'")
        by_task = (
            rows.assign(layer=rows["value"] * rows["x"])
            .groupby(["task", "finetuned_on", "seed"])["layer"]
            .sum()
        )
        by_task = by_task.groupby(["task", "finetuned_on"]).mean().unstack("finetuned_on")
        if model == SMALL:
            by_task = by_task.drop(index="PMB:sem")
        shifts += [float(by_task.loc[c, t] - by_task.loc[c, ""]) for c in by_task.index for t in FINETUNED]
    yield f"The top neurons are in lower layers after finetuning in {sum(s < 0 for s in shifts)} of {len(shifts)} cases, by up to {-min(shifts):.1f} layers"
    for claim in ("D2", "D3"):
        assert verdict(f"{SMALL}-words", claim) == "not enough trials"
        assert not any(test.verdict == "does not hold" for test in claims(f"{SMALL}-words")[claim].tests)
        assert verdict(f"{MPNET}-words", claim) == "not tested"


def _pruning_facts() -> Iterator[str]:
    costs = []
    for model in (SMALL, MPNET):
        for task in ("SST-2", "QNLI"):
            cells = []
            for condition in ("all pretrained", "top", "bottom"):
                i = t_interval(values(f"{model}-words", experiment="prune", task=task, condition=condition))
                cells.append(f"{pts(i.mean)} ± {pts(i.half_width)}")
            yield f"| {model}, {task} | {' | '.join(cells)} |"
            costs.append(-test_of(f"{model}-words", "D4", task).effect)
    for task in ("SST-2", "QNLI"):
        cells = [pts(published_pruning("bert", task)[q]) for q in ("none", "prune top 6", "prune bottom 6")]
        yield f"| BERT, published, {task} | {' | '.join(cells)} |"
    assert verdict(f"{MPNET}-words", "D4") == "holds"
    assert verdict(f"{SMALL}-words", "D4") == "below the margin"
    yield f"in all four cases: by {pts(min(costs))} points to {pts(max(costs))}"
    yield f"on SST-2 in carryover-bert-small, {pts(costs[0])} points, smaller than the margin of one point"
    top = values(f"{SMALL}-words", experiment="prune", task="QNLI", condition="top")
    d = paired_difference(
        values(f"{SMALL}-words", experiment="prune", task="QNLI", condition="all pretrained"), top
    )
    yield f"the upper six add {pts(d.mean)} points ({pts(d.low)} to {pts(d.high)})"
