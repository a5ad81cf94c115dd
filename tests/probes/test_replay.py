"""Steps that find everything on the device train the same probes; on a CPU they run one by one."""

import numpy as np
import pytest
import torch

from carryover.probes import linear
from carryover.probes.linear import Job, Table, fit
from carryover.probes.replay import run_steps
from carryover.trial import Probe


def test_each_batch_once_with_its_place_and_number():
    seen = []
    run_steps(lambda place, number: seen.append((int(place), float(number))), 3, 8, 10, torch.device("cpu"))
    assert seen == [(0, 11.0), (8, 12.0), (16, 13.0)]


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_steps_by_place_and_number_equal_plain_ones(monkeypatch, kind):
    rng = np.random.default_rng(1)
    states = rng.normal(size=(101, 2, 8)).astype(np.float32)
    labels = rng.integers(0, 3, 101) if kind == "classification" else rng.normal(size=101)
    outputs = 3 if kind == "classification" else 1
    jobs = [
        Job(Probe(layer, max_epochs=4, lr=1e-2, weight_decay=0.1), seed, np.arange(101))
        for layer in (0, 1)
        for seed in (0, 1)
    ]
    plain = fit(Table(states), labels, jobs, outputs, kind)

    class OnDevice(torch.Tensor):
        is_cuda = True  # the table says that it lies on a device

    calls = []
    real = linear.run_steps
    monkeypatch.setattr(linear, "run_steps", lambda *args: (calls.append(args[1]), real(*args)))
    table = Table(states)
    table.flat = table.flat.as_subclass(OnDevice)
    replayed = fit(table, labels, jobs, outputs, kind)
    assert calls == [91 // 8] * 4, "full batches are replayed, the rest of an epoch is not"
    for one, other in zip(plain, replayed, strict=True):
        assert one.epoch == other.epoch
        torch.testing.assert_close(torch.Tensor(other.weight), one.weight, atol=1e-5, rtol=1e-5)
