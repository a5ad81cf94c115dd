"""Pairs of trials agree in the settings in which a study has several values, whatever else stands in their studies."""

from __future__ import annotations

import dataclasses

from synthetic_results import lifelike, localized, trial, write_results

from whichlayers.analysis.compare_studies import compare_studies
from whichlayers.results.db import ResultsDB
from whichlayers.results.schema import adapter_json
from whichlayers.trial import Adapter, Point, Probe, Training

BASE = lifelike(6)


def changed(points, **changes):
    return [dataclasses.replace(p, trial=dataclasses.replace(p.trial, **changes)) for p in points]


def probes(poolings, *, named, seeds=(0, 1), **settings):
    """Points of linear probes; the conditions name the pooling if the study has several."""
    return [
        Point(
            "probing",
            f"pooling {pooling}" if named else "",
            layer,
            dataclasses.replace(trial(seed=seed), probe=Probe(layer, pooling, **settings)),
        )
        for pooling in poolings
        for layer in (1, 2)
        for seed in seeds
    ]


def test_probes_of_several_poolings_are_paired_with_those_of_the_same_pooling(tmp_path):
    points = probes(("mean", "summary"), named=True)
    folders = [write_results(tmp_path / name, points, BASE) for name in "ab"]
    pairs = compare_studies(*folders).pairs
    assert pairs.groupby("setting").size().to_dict() == {"pooling mean": 4, "pooling summary": 4}
    assert set(pairs["condition"]) == {""}


def test_one_pooling_is_paired_with_the_same_one_of_a_list(tmp_path):
    """Only the conditions of the list name the pooling; the trials are the same."""
    one = write_results(tmp_path / "one", probes(("summary",), named=False), lambda p: 0.7)
    several = write_results(
        tmp_path / "several",
        probes(("mean", "summary"), named=True),
        lambda p: 0.7 if p.trial.probe.pooling == "summary" else 0.5,
    )
    for a, b in ((one, several), (several, one)):
        found = compare_studies(a, b)
        assert (found.pairs["a"] == found.pairs["b"]).all()
        assert (len(found.pairs), found.differs) == (4, [])
        assert found.unpaired == [
            (
                "probing, in several: the other study has no finished trial of the same probe pooling, point, task, "
                "training size and seed",
                4,
            )
        ]


def test_probes_that_differ_in_one_setting_are_compared_in_it(tmp_path):
    """The settings of finetuning have no effect on them."""
    a = write_results(tmp_path / "a", probes(("mean",), named=False), BASE)
    points = changed(probes(("summary",), named=False, lr=0.01), training=Training(lr=1e-3), head="pooler")
    found = compare_studies(a, write_results(tmp_path / "b", points, BASE))
    assert found.differs == [("probe pooling", "mean", "summary"), ("probe lr", "0.001", "0.01")]
    assert len(found.pairs) == 4


LORA = Adapter("lora", (1, 2), ("attention.query", "attention.value"))
IA3 = Adapter("ia3", (1, 2), ("attention.query", "attention.value"))


def adapted(*curves, seeds=(0, 1), lr=2e-5, baseline=True):
    """Points of `adapt`: the baseline, and one curve per (condition, adapter, learning rate)."""
    training = Training(lr=lr)
    points = [
        Point("adapt", "all pretrained", 0, dataclasses.replace(trial(seed=s), training=training))
        for s in seeds
        if baseline
    ]
    return points + [
        Point("adapt", c, 2, dataclasses.replace(trial(seed=s), adapter=adapter, training=Training(lr=own)))
        for c, adapter, own in curves
        for s in seeds
    ]


def by_adapter(point):
    adapter = point.trial.adapter
    return 0.5 if adapter is None else {"lora": 0.6, "ia3": 0.7}[adapter.method] + adapter.rank / 1000


def write_adapted(folder, points):
    write_results(folder, points, by_adapter, name=folder.name)
    adapters = [(adapter_json(p.trial.adapter), p.trial.id) for p in points if p.trial.adapter is not None]
    with ResultsDB.open(folder / "results.db", folder.name) as db, db.transaction() as connection:
        connection.executemany("UPDATE trials SET adapter = ? WHERE id = ?", adapters)
    return folder


def test_lora_is_paired_with_lora_beside_ia3(tmp_path):
    one = adapted(("first, lr 0.001", LORA, 1e-3))
    both = adapted(("first, LoRA, lr 0.001", LORA, 1e-3), ("first, IA3, lr 0.001", IA3, 1e-3))
    folders = [write_adapted(tmp_path / n, p) for n, p in (("one", one), ("both", both))]
    for a, b in (folders, folders[::-1]):
        found = compare_studies(a, b)
        assert found.pairs["condition"].tolist() == ["all pretrained"] * 2 + ["first"] * 2
        assert (found.pairs["a"] == found.pairs["b"]).all()
        assert found.differs == []
        [(reason, count)] = found.unpaired
        assert reason.startswith("adapt, in both: ")
        assert "the same adapter method, point" in reason
        assert count == 2


def test_adapters_that_both_studies_have_are_told_apart(tmp_path):
    other = dataclasses.replace(LORA, rank=16, targets=("output.dense",))
    curves = (
        ("first, LoRA, rank 8, query + value", LORA, 2e-5),
        ("first, LoRA, rank 16, dense", other, 2e-5),
    )
    points = adapted(*curves, ("first, IA3, query + value", IA3, 2e-5))
    folders = [write_adapted(tmp_path / name, points) for name in "ab"]
    found = compare_studies(*folders)
    assert found.unpaired == []
    assert list(found.curves[["condition", "setting"]].itertuples(index=False, name=None)) == [
        ("all pretrained", ""),
        ("first", "LoRA, rank 8, query + value"),
        ("first", "LoRA, rank 16, dense"),
        ("first", "IA3, query + value"),
    ]


def test_adapters_that_differ_in_one_setting_are_compared_in_it(tmp_path):
    """The rank and the learning rate of the adapters differ; in the second, all trials have that learning rate."""
    a = write_adapted(tmp_path / "a", adapted(("first, lr 0.001", LORA, 1e-3)))
    rank = dataclasses.replace(LORA, rank=16)
    b = write_adapted(tmp_path / "b", adapted(("first, lr 0.01", rank, 1e-2)))
    found = compare_studies(a, b)
    assert found.differs == [("peft lr", "0.001", "0.01"), ("adapter rank", "8", "16")]
    assert (len(found.pairs), found.unpaired) == (4, [])
    c = write_adapted(tmp_path / "c", adapted(("first", LORA, 1e-3), lr=1e-3))
    same = compare_studies(a, c)
    assert same.differs == [("lr", "2e-05", "0.001")]  # of the baseline
    assert (len(same.pairs), same.unpaired) == (4, [])


def test_a_learning_rate_of_their_own_pairs_adapters_whose_conditions_name_more(tmp_path):
    """In the first study, the condition names the method; in the second, the trial has the study's learning rate."""
    curves = [
        (f"first, {name}, lr {lr}", adapter, lr)
        for name, adapter in (("LoRA", LORA), ("IA3", IA3))
        for lr in (0.001, 0.01)
    ]
    a = write_adapted(tmp_path / "a", adapted(*curves))
    b = write_adapted(tmp_path / "b", adapted(("first", LORA, 1e-2), lr=1e-2))
    found = compare_studies(a, b)
    assert found.pairs["condition"].tolist() == ["all pretrained"] * 2 + ["first"] * 2
    assert (found.pairs["a"] == found.pairs["b"]).all()
    assert [count for _, count in found.unpaired] == [6]


def test_trials_with_several_learning_rates_of_their_own_are_paired_by_it(tmp_path):
    several = adapted(("first, lr 0.001", LORA, 1e-3), ("first, lr 0.01", LORA, 1e-2))
    a = write_adapted(tmp_path / "a", several)
    b = write_adapted(tmp_path / "b", adapted(("first", LORA, 1e-2), lr=1e-2))
    found = compare_studies(a, b)
    assert (len(found.pairs), dict(found.unpaired).popitem()[1]) == (4, 2)
    assert set(compare_studies(a, write_adapted(tmp_path / "copy", several)).curves["setting"]) == {
        "",
        "peft lr 0.001",
        "peft lr 0.01",
    }


def test_blocks_are_paired_with_blocks_of_the_same_length(tmp_path):
    """Where a study has several lengths, frames name them in the condition."""
    three = localized(trials=2)
    two = [p for p in localized(trials=2, block=2) if p.condition.startswith("block ")]
    a = write_results(tmp_path / "a", three, BASE)
    b = write_results(tmp_path / "b", three + two, BASE)
    found = compare_studies(a, b)
    assert len(found.pairs) == len(three)
    assert [count for _, count in found.unpaired] == [len(two)]
    assert {"blocks of 2", "blocks of 3"} < set(
        compare_studies(b, write_results(tmp_path / "c", three + two, BASE)).curves["setting"]
    )
