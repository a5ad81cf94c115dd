"""The finetuned encoders that a stack hands over, against a plain loop and against what the stack says of itself."""

import dataclasses

import pytest
import torch
from plain_loop import plain_finetune
from tiny import tiny_encoder, tiny_task

from whichlayers.engine.export_weights import with_weights
from whichlayers.engine.finetune import finetune
from whichlayers.engine.results import EngineSettings
from whichlayers.errors import WhichlayersError
from whichlayers.trial import Training, Trial, WordProbe

TRIAL = Trial(
    "tiny", "m", "tiny", "t", 24, 0, training=Training(epochs=2, lr=1e-3, weight_decay=0.1, dropout=0.0)
)


def handed_over(trials, encoder, data, **settings):
    found = {}
    outcomes = finetune(
        trials,
        encoder,
        data,
        on_trained=lambda outcome, weights: found.update({outcome.trial_id: weights}),
        settings=EngineSettings(**settings),
    )
    return outcomes, found


@pytest.mark.parametrize("family", ["bert", "xlnet", "distilbert"])
def test_weights_are_those_of_a_plain_loop(family):
    encoder, data = tiny_encoder(family, dropout=0.0), tiny_task()
    trials = [dataclasses.replace(TRIAL, seed=seed) for seed in (0, 1)]
    _, found = handed_over(trials, encoder, data, slots=3)  # one slot fills up
    assert set(found) == {trial.id for trial in trials}
    for trial in trials:
        plain = plain_finetune(trial, encoder, data)[0].encoder
        made = dict(with_weights(encoder, found[trial.id]).named_parameters())
        for name, value in plain.named_parameters():
            assert torch.allclose(made[name], value, atol=2e-5), name


def test_the_pretrained_encoder_stays_as_it_was():
    encoder, data = tiny_encoder("bert"), tiny_task()
    before = {name: value.clone() for name, value in encoder.named_parameters()}
    _, found = handed_over([TRIAL], encoder, data)
    made = with_weights(encoder, found[TRIAL.id])
    assert all(torch.equal(before[name], value) for name, value in encoder.named_parameters())
    moved = [name for name, value in made.named_parameters() if not torch.equal(value, before[name])]
    assert len(moved) > 20
    assert all(
        value.dtype == torch.float32 and value.device.type == "cpu" for value in found[TRIAL.id].values()
    )


def test_norms_of_the_change_are_those_that_are_reported():
    encoder, data = tiny_encoder("bert"), tiny_task()
    outcomes, found = handed_over([TRIAL], encoder, data)
    before = dict(encoder.named_parameters())
    assert outcomes[0].weight_changes
    for change in outcomes[0].weight_changes:
        moved = found[TRIAL.id][change.name] - before[change.name].detach()
        assert float(moved.norm()) == pytest.approx(change.frobenius, rel=1e-4)


def test_a_trial_that_diverged_hands_over_nothing():
    encoder, data = tiny_encoder("bert"), tiny_task()
    wild = dataclasses.replace(TRIAL, seed=1, training=dataclasses.replace(TRIAL.training, lr=1e30))
    outcomes, found = handed_over([TRIAL, wild], encoder, data)
    assert outcomes[1].error
    assert set(found) == {TRIAL.id}


def test_a_question_about_words_is_not_finetuned_itself():
    with pytest.raises(WhichlayersError, match=r"finetune `trial\.finetuning`"):
        finetune(
            [dataclasses.replace(TRIAL, word_probe=WordProbe("c", "f"))], tiny_encoder("bert"), tiny_task()
        )


def test_changes_are_measured_only_where_they_are_wanted():
    encoder, data = tiny_encoder("bert"), tiny_task()
    (with_them,), (without,) = (
        finetune([TRIAL], encoder, data, with_changes=wanted) for wanted in (True, False)
    )
    assert with_them.weight_changes
    assert not without.weight_changes
    assert without.epochs[-1].metrics == with_them.epochs[-1].metrics
    assert without.seconds > 0
