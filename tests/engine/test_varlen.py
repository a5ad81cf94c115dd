"""Packed layers compute the same as padded ones: outputs, gradients, dropout, evaluation."""

import pytest
import torch
from tiny import random_batch, tiny_encoder

from whichlayers.engine.stacking import stack_models
from whichlayers.engine.varlen import PACKABLE_FAMILIES, Packing, pack_layers
from whichlayers.models.head import build_classifier


def padded_and_packed(family: str, dropout: float | None = None):
    models = [build_classifier(tiny_encoder(family, i, dropout), "mean", 3, seed=i).eval() for i in range(3)]
    plain, packed = stack_models(models), stack_models(models)
    pack_layers(packed)
    return plain, packed


@pytest.mark.parametrize("family", sorted(PACKABLE_FAMILIES))
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_are_those_of_padded_batches(family, training):
    batch = random_batch(3 * 6, 13)
    keys, step = torch.tensor([11, 22, 33], dtype=torch.int32), torch.tensor(5, dtype=torch.int32)
    outs, grads = [], []
    for s in padded_and_packed(family, 0.2):
        s.train(training).set_dropout_keys(keys, step, 6)
        out = s(**batch)
        out.square().sum().backward()
        outs.append(out)
        grads.append({n: p.grad for n, p in s.module.named_parameters() if p.grad is not None})
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-4, atol=1e-5)
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, rtol=1e-3, atol=3e-5, msg=lambda m, n=name: n + m)
    assert s.context.packing is None, "outside of the layers, activations are not packed"


def test_unpack_inverts_pack():
    mask = random_batch(12, 9)["attention_mask"]
    packing = Packing.from_mask(mask, 3)
    x = torch.randn(12, 9, 4) * mask[..., None]
    packed = packing.pack(x)
    assert packed.shape == (1, int(mask.sum()), 4)
    assert packing.trial_tokens == mask.view(3, -1).sum(1).tolist()
    assert torch.equal(packing.unpack(packed), x)
    to_grid, from_grid, is_token = packing.per_head(2)
    vectors = torch.randn(int(mask.sum()) * 2, 5)
    assert torch.equal(vectors[to_grid][from_grid], vectors)
    assert int(is_token.sum()) == 2 * int(mask.sum())


def test_a_batch_that_is_not_right_padded_is_not_packed():
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
    assert Packing.from_mask(mask, 1) is None
    assert Packing.from_mask(torch.tensor([[1, 1, 1], [0, 0, 0]]), 1) is None
    plain, packed = padded_and_packed("bert")
    batch = random_batch(6, 7)
    batch["attention_mask"] = batch["attention_mask"].flip(1)
    torch.testing.assert_close(packed.eval()(**batch), plain.eval()(**batch))


def test_families_that_cannot_be_packed_are_unchanged():
    plain, packed = padded_and_packed("mpnet")
    batch = random_batch(6, 7, types=False)
    assert torch.equal(packed.eval()(**batch), plain.eval()(**batch))
