"""The online code against a loop that trains and counts bit by bit, and what it should tell apart."""

import math

import numpy as np
import pytest
import torch

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.probes import mdl
from whichlayers.probes.elastic_net import ProbeTraining, Problem, fit_probes
from whichlayers.probes.mdl import PORTIONS, online_code
from whichlayers.probes.word_table import WordTable

TAGS = 4


def made_up(signal, n=800):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, TAGS, n)
    states = rng.normal(size=(n, 6)).astype(np.float32)
    states[:, :TAGS] += signal * np.eye(TAGS, dtype=np.float32)[labels]
    return WordTable(states), labels


def test_bits_against_a_loop(monkeypatch):
    monkeypatch.setattr(mdl, "LEAST_STEPS", 0)
    table, labels = made_up(2.0)
    training = ProbeTraining(epochs=3, batch_size=32, lr=0.01)
    problems = [Problem(np.arange(6), seed=5), Problem(np.array([4, 5]), l2=1e-3, seed=5)]
    told = []
    found = online_code(
        table, labels, TAGS, problems, portions=(0.1, 0.5, 1.0), training=training, on_step=told.append
    )
    assert sum(told) == 4
    order = rng.permutation(5, "online code", 800)
    for problem, code in zip(problems, found, strict=True):
        bits = [80 * math.log2(TAGS)]
        for start, end in ((80, 400), (400, 800)):
            [probe] = fit_probes(table, labels, TAGS, [problem], training, rows=order[:start])
            sent = order[start:end]
            outputs = table.flat[sent][:, problem.neurons] @ probe.weight + probe.bias
            chance = torch.softmax(outputs, -1)[np.arange(len(sent)), labels[sent]]
            bits.append(float(-torch.log2(chance).sum()))
        assert code.blocks == pytest.approx(bits, rel=1e-4)
        assert code.bits == pytest.approx(sum(bits), rel=1e-4)
        assert code.uniform_bits == pytest.approx(1600)
        assert code.compression == pytest.approx(1600 / code.bits)
        assert code.nats == pytest.approx(code.bits * math.log(2))


def test_states_that_tell_more_compress_more():
    training = ProbeTraining(lr=0.02, batch_size=64)
    codes = []
    for signal in (0.0, 1.0, 4.0):
        table, labels = made_up(signal)
        codes += online_code(table, labels, TAGS, [Problem(table.everything())], training=training)
    nothing, some, much = (code.compression for code in codes)
    assert 0.7 < nothing < 1.1 < some < much
    assert much > 2


def test_seeds_send_in_another_order():
    table, labels = made_up(1.0)
    problems = [Problem(np.arange(6), seed=seed) for seed in (0, 1, 0)]
    one, two, three = online_code(table, labels, TAGS, problems, training=ProbeTraining(epochs=1))
    assert one.bits == pytest.approx(three.bits) != two.bits


def test_seeds_together_cost_the_bits_of_each():
    table, labels = made_up(1.0)
    problems = [Problem(np.arange(6), seed=seed) for seed in (0, 1)]
    training = ProbeTraining(epochs=1, batch_size=32)
    together = online_code(table, labels, TAGS, problems, training=training)
    for problem, code in zip(problems, together, strict=True):
        [alone] = online_code(table, labels, TAGS, [problem], training=training)
        assert code.blocks == pytest.approx(alone.blocks, rel=1e-5)


def test_small_tables_have_fewer_portions():
    assert mdl._ends(PORTIONS, 40) == [1, 2, 5, 10, 20, 40]
    assert mdl._ends(PORTIONS, 100_000)[:3] == [100, 200, 400]


@pytest.mark.parametrize("wrong", [(), (0.5,), (0.5, 0.2, 1.0), (0.0, 1.0)])
def test_portions_that_are_none(wrong):
    table, labels = made_up(1.0, n=20)
    with pytest.raises(WhichlayersError, match="portions must rise"):
        online_code(table, labels, TAGS, [Problem(np.arange(2))], portions=wrong)
