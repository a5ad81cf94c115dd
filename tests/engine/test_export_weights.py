"""Exported weights of finetuned encoders, against a plain training loop and against the reported weight changes."""

import dataclasses

import pytest
import torch
from plain_loop import plain_finetune
from tiny import tiny_encoder, tiny_task

from whichlayers.engine.export_weights import with_weights
from whichlayers.engine.finetune import finetune
from whichlayers.engine.settings import EngineSettings
from whichlayers.errors import WhichlayersError
from whichlayers.trial import Training, Trial, WordProbe

TRIAL = Trial(
    "tiny", "m", "tiny", "t", 24, 0, training=Training(epochs=2, lr=1e-3, weight_decay=0.1, dropout=0.0)
)


def exported(trials, encoder, data, **settings):
    weights_by_trial = {}
    results = finetune(
        trials,
        encoder,
        data,
        on_trained=lambda result, weights: weights_by_trial.update({result.trial_id: weights}),
        settings=EngineSettings(**settings),
    )
    return results, weights_by_trial


@pytest.mark.parametrize("family", ["bert", "xlnet", "distilbert"])
def test_weights_are_those_of_a_plain_loop(family):
    encoder, data = tiny_encoder(family, dropout=0.0), tiny_task()
    trials = [dataclasses.replace(TRIAL, seed=seed) for seed in (0, 1)]
    _, weights_by_trial = exported(trials, encoder, data, slots=3)  # one padded slot
    assert set(weights_by_trial) == {trial.id for trial in trials}
    for trial in trials:
        plain = plain_finetune(trial, encoder, data)[0].encoder
        parameters = dict(with_weights(encoder, weights_by_trial[trial.id]).named_parameters())
        for name, value in plain.named_parameters():
            assert torch.allclose(parameters[name], value, atol=2e-5), name


def test_the_pretrained_encoder_is_not_modified():
    encoder, data = tiny_encoder("bert"), tiny_task()
    before = {name: value.clone() for name, value in encoder.named_parameters()}
    _, weights_by_trial = exported([TRIAL], encoder, data)
    finetuned = with_weights(encoder, weights_by_trial[TRIAL.id])
    assert all(torch.equal(before[name], value) for name, value in encoder.named_parameters())
    moved = [name for name, value in finetuned.named_parameters() if not torch.equal(value, before[name])]
    assert len(moved) > 20
    assert all(
        value.dtype == torch.float32 and value.device.type == "cpu"
        for value in weights_by_trial[TRIAL.id].values()
    )


def test_norms_of_the_changes_are_those_reported():
    encoder, data = tiny_encoder("bert"), tiny_task()
    results, weights_by_trial = exported([TRIAL], encoder, data)
    before = dict(encoder.named_parameters())
    assert results[0].weight_changes
    for change in results[0].weight_changes:
        moved = weights_by_trial[TRIAL.id][change.name] - before[change.name].detach()
        assert float(moved.norm()) == pytest.approx(change.frobenius, rel=1e-4)


def test_no_weights_are_exported_for_a_trial_that_diverged():
    encoder, data = tiny_encoder("bert"), tiny_task()
    wild = dataclasses.replace(TRIAL, seed=1, training=dataclasses.replace(TRIAL.training, lr=1e30))
    results, weights_by_trial = exported([TRIAL, wild], encoder, data)
    assert results[1].error
    assert set(weights_by_trial) == {TRIAL.id}


def test_a_word_probe_cannot_be_finetuned():
    with pytest.raises(WhichlayersError, match=r"finetune `trial\.finetuning`"):
        finetune(
            [dataclasses.replace(TRIAL, word_probe=WordProbe("c", "f"))], tiny_encoder("bert"), tiny_task()
        )


def test_weight_changes_are_measured_only_if_requested():
    encoder, data = tiny_encoder("bert"), tiny_task()
    (with_them,), (without,) = (
        finetune([TRIAL], encoder, data, with_weight_changes=wanted) for wanted in (True, False)
    )
    assert with_them.weight_changes
    assert not without.weight_changes
    assert without.epochs[-1].metrics == with_them.epochs[-1].metrics
    assert without.seconds > 0
