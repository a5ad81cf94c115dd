"""A stacked model computes the same as its models separately, for every family; dropout depends on the trial only."""

import pytest
import torch
from tiny import ENCODERS, FAMILIES, random_batch, tiny_encoder

from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.stacked_modules import StackContext
from whichlayers.engine.stacking import StackedModel, stack_models, unstack_model
from whichlayers.errors import WhichlayersError
from whichlayers.models.head import build_classifier


def classifiers(family: str, n: int = 3, head: str = "mean"):
    return [build_classifier(tiny_encoder(family, seed=i), head, 3, seed=i).eval() for i in range(n)]


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_and_gradients_equal_separate_models(family):
    models = classifiers(family)
    stacked = stack_models(models).eval()
    batch = random_batch(3 * 4, 11)
    out = stacked(**batch)
    out.square().sum().backward()
    grads = {n: p.grad for n, p in stacked.module.named_parameters() if p.grad is not None}
    for t, model in enumerate(models):
        rows = {k: v[4 * t : 4 * t + 4] for k, v in batch.items()}
        alone = model(**rows)
        alone.square().sum().backward()
        torch.testing.assert_close(out[4 * t : 4 * t + 4], alone, rtol=1e-4, atol=1e-5)
        for name, p in model.named_parameters():
            if p.grad is not None and p.grad.abs().max() > 0:
                torch.testing.assert_close(
                    grads[name][t], p.grad, rtol=1e-3, atol=2e-5, msg=lambda m, n=name: n + m
                )


@pytest.mark.parametrize("family", FAMILIES)
def test_unstack_model_returns_the_plain_model(family):
    models = classifiers(family)
    back = unstack_model(stack_models(models), 1, like=models[0])
    for (name, a), (_, b) in zip(back.named_parameters(), models[1].named_parameters(), strict=True):
        if name.endswith("mask_emb"):  # XLNet's, used in pretraining only and shared
            continue
        assert torch.equal(a, b), name
    batch = random_batch(4, 9)
    torch.testing.assert_close(back.eval()(**batch), models[1](**batch))


@pytest.mark.parametrize("family", ENCODERS)
def test_dropout_depends_on_trial_step_and_position_only(family):
    models = classifiers(family)
    keys = torch.tensor([11, 22, 33], dtype=torch.int32)
    batch = random_batch(3 * 4, 11)
    together = stack_models(models).train()
    together.set_dropout_keys(keys, torch.tensor(5, dtype=torch.int32), 4)
    out = together(**batch)
    for t, model in enumerate(models):
        alone = stack_models([model]).train()
        alone.set_dropout_keys(keys[t : t + 1], torch.tensor(5, dtype=torch.int32), 4)
        # alone, the trial's batch is trimmed to its own longest sequence
        rows = {k: v[4 * t : 4 * t + 4] for k, v in batch.items()}
        longest = int(rows["attention_mask"].sum(1).max())
        rows = {k: v[:, :longest] for k, v in rows.items()}
        torch.testing.assert_close(alone(**rows), out[4 * t : 4 * t + 4], rtol=1e-4, atol=1e-5)
    together.set_dropout_keys(keys, torch.tensor(6, dtype=torch.int32), 4)
    assert not torch.allclose(together(**batch), out), "another step, another mask"
    assert not torch.allclose(together.eval()(**batch), out)


def test_dropout_drops_the_given_fraction_and_keeps_the_mean():
    context = StackContext(2)
    context.row_keys = torch.arange(40, dtype=torch.int32) * 77
    for p in (0.1, 0.5):
        dropout = StackedDropout(p, 3, context).train()
        for shape in ((40, 32), (40, 50, 32), (40, 4, 50, 50)):
            out = dropout(torch.ones(shape))
            assert abs((out == 0).float().mean().item() - p) < 0.02
            assert abs(out.mean().item() - 1) < 0.03
    a = StackedDropout(0.5, 1, context).train()(torch.ones(40, 50, 64))
    b = StackedDropout(0.5, 2, context).train()(torch.ones(40, 50, 64))
    agree = ((a == 0) == (b == 0)).float().mean().item()
    assert abs(agree - 0.5) < 0.02, "two dropout modules are independent"
    rows = (a[1:] == 0) == (a[:-1] == 0)
    assert abs(rows.float().mean().item() - 0.5) < 0.02, "two rows are independent"


def test_only_rows_in_use_are_parameters_and_evaluation_still_reads_all():
    model = classifiers("bert", 1)[0]
    rows = [torch.tensor([0, 3, 7]), torch.tensor([0, 7, 9, 11])]
    name = "encoder.embeddings.word_embeddings"
    stacked = StackedModel(model, 2, rows={name: rows}).eval()
    assert stacked.module.get_submodule(name).weight.shape == (2, 4, 32)
    batch = random_batch(8, 9)
    torch.testing.assert_close(stacked(**batch), model(**batch), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        stacked.trial_parameter(f"{name}.weight", 1), model.encoder.embeddings.word_embeddings.weight
    )


def test_rows_that_only_fill_up_the_table_change_nothing():
    model = classifiers("bert", 1)[0]
    name = "encoder.embeddings.word_embeddings"
    rows = [torch.arange(0, 60), torch.arange(30, 77)]
    batch = random_batch(8, 9)
    grads = []
    for multiple in (1, 64):
        stacked = StackedModel(model, 2, {name: rows}, row_multiple=multiple).eval()
        logits = stacked(**batch)
        logits.square().sum().backward()
        grads.append((logits.detach(), stacked.module.get_submodule(name).weight.grad))
    (exact, grad), (padded, padded_grad) = grads
    assert padded_grad.shape[1] == 64 > grad.shape[1] == 60
    assert torch.equal(exact, padded)
    assert torch.equal(padded_grad[:, :60], grad)
    assert not padded_grad[:, 60:].any()


def test_models_that_cannot_be_stacked_are_rejected():
    with pytest.raises(WhichlayersError, match="cannot share a stack"):
        stack_models([*classifiers("bert", 1), *classifiers("roberta", 1)])
    with pytest.raises(WhichlayersError, match="at least one model"):
        stack_models([])
    with pytest.raises(WhichlayersError, match="at least one trial"):
        StackedModel(classifiers("bert", 1)[0], 0)
    models = classifiers("bert", 2)
    with pytest.raises(WhichlayersError, match="0 to 1"):
        unstack_model(stack_models(models), 2, like=models[0])
