"""Norms of weight changes against numpy, and against the weights of a plain training loop."""

from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
from plain_loop import plain_finetune
from stack_loop import run_steps, trial, without_dropout
from tiny import tiny_encoder, tiny_task

from whichlayers.engine import weight_change
from whichlayers.engine.weight_change import spectral_norm, weight_changes
from whichlayers.models.surgery import apply_surgery
from whichlayers.trial import Adapter, Surgery


@pytest.mark.parametrize("shape", [(5, 3), (40, 90), (200, 64)])
def test_the_spectral_norm_is_the_largest_singular_value(shape):
    g = torch.Generator().manual_seed(0)
    matrices = torch.randn(4, *shape, generator=g)  # singular values lie close together: the hard case
    matrices[1] = torch.outer(torch.arange(shape[0]).float(), torch.ones(shape[1]))  # of rank one
    matrices[2] = 0
    expected = [np.linalg.norm(m, ord=2) for m in matrices.numpy()]
    torch.testing.assert_close(spectral_norm(matrices), torch.tensor(expected), rtol=0.01, atol=1e-6)
    matrices[0, 0, 0] = torch.nan
    found = spectral_norm(matrices)
    assert found[0].isnan(), "a trial that diverged"
    torch.testing.assert_close(found[1:], torch.tensor(expected[1:]), rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_weight_change_is_the_distance_between_start_and_end(family):
    encoder, data = tiny_encoder(family), tiny_task()
    trials = [trial(0), trial(1, surgery=Surgery(reinit=(2, 3)))]
    trainer, _ = run_steps(trials, encoder, data, 10)
    changes = weight_changes(trainer)
    for t, one in enumerate(trials):
        start = apply_surgery(encoder, one.surgery, one.seed)
        end, _ = plain_finetune(one, without_dropout(encoder), data, max_steps=10)
        before, after = dict(start.named_parameters()), dict(end.encoder.named_parameters())
        assert {c.layer for c in changes[t]} == {1, 2, 3}
        for c in changes[t]:
            a = before[c.name].detach().flatten(1).numpy()
            b = after[c.name].detach().flatten(1).numpy()
            assert c.frobenius == pytest.approx(np.linalg.norm(b - a), rel=1e-2)
            assert c.spectral == pytest.approx(np.linalg.norm(b - a, ord=2), rel=2e-2)
            assert c.start_frobenius == pytest.approx(np.linalg.norm(a), rel=1e-4)
            assert c.start_spectral == pytest.approx(np.linalg.norm(a, ord=2), rel=1e-2)
    names = {c.name for c in changes[0]}
    assert any(name.endswith("output.dense.weight" if family == "bert" else "rel_attn.o") for name in names)
    assert not any("norm" in name.lower() or name.endswith("bias") for name in names)


@pytest.mark.parametrize("adapter", [None, Adapter("lora", (1, 3), ("output.dense",), rank=4)])
def test_weight_changes_in_parts_of_one_trial(adapter, monkeypatch):
    trials = [replace(trial(seed), adapter=adapter) for seed in range(3)]
    trainer, _ = run_steps(trials, tiny_encoder("bert"), tiny_task(), 3)
    together = weight_changes(trainer)
    monkeypatch.setattr(weight_change, "PART_BYTES", 1)
    alone = weight_changes(trainer)
    for a, b in zip(together, alone, strict=True):
        assert [(c.name, c.layer) for c in a] == [(c.name, c.layer) for c in b]
        np.testing.assert_allclose(
            [c[2:] for c in map(astuple, a)], [c[2:] for c in map(astuple, b)], rtol=1e-5
        )
    assert len({c.frobenius for changes in alone for c in changes if c.layer == 3}) > 3, "trials differ"


def test_weight_changes_of_some_layers():
    trainer, _ = run_steps([trial(0)], tiny_encoder("bert"), tiny_task(), 1)
    [every] = weight_changes(trainer)
    assert weight_changes(trainer, {1, 3}) == [[change for change in every if change.layer in (1, 3)]]
    assert {change.layer for change in every} == {1, 2, 3}
