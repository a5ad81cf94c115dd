"""Packed layers compute what padded ones compute: outputs, gradients, dropout, evaluation."""

import pytest
import torch
from tiny import random_batch, tiny_encoder

from whichlayers.engine.stacking import stack
from whichlayers.engine.varlen import PACKABLE, Packing, pack_layers
from whichlayers.models.head import build_classifier


def stacks(family: str, dropout: float | None = None):
    models = [build_classifier(tiny_encoder(family, i, dropout), "mean", 3, seed=i).eval() for i in range(3)]
    plain, packed = stack(models), stack(models)
    pack_layers(packed)
    return plain, packed


@pytest.mark.parametrize("family", sorted(PACKABLE))
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_are_those_of_padded_batches(family, training):
    batch = random_batch(3 * 6, 13)
    keys, step = torch.tensor([11, 22, 33], dtype=torch.int32), torch.tensor(5, dtype=torch.int32)
    outs, grads = [], []
    for s in stacks(family, 0.2):
        s.train(training).set_keys(keys, step, 6)
        out = s(**batch)
        out.square().sum().backward()
        outs.append(out)
        grads.append({n: p.grad for n, p in s.model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-4, atol=1e-5)
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, rtol=1e-3, atol=3e-5, msg=lambda m, n=name: n + m)
    assert s.context.packing is None, "outside of the layers nothing is packed"


def test_packing_and_unpacking_undo_each_other():
    mask = random_batch(12, 9)["attention_mask"]
    packing = Packing.of(mask, 3)
    x = torch.randn(12, 9, 4) * mask[..., None]
    packed = packing.pack(x)
    assert packed.shape == (1, int(mask.sum()), 4)
    assert packing.sizes == mask.view(3, -1).sum(1).tolist()
    assert torch.equal(packing.unpack(packed), x)
    there, back, real = packing.heads(2)
    lanes = torch.randn(int(mask.sum()) * 2, 5)
    assert torch.equal(lanes[there][back], lanes)
    assert int(real.sum()) == 2 * int(mask.sum())


def test_a_batch_that_is_not_padded_on_the_right_is_taken_as_it_is():
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
    assert Packing.of(mask, 1) is None
    assert Packing.of(torch.tensor([[1, 1, 1], [0, 0, 0]]), 1) is None
    plain, packed = stacks("bert")
    batch = random_batch(6, 7)
    batch["attention_mask"] = batch["attention_mask"].flip(1)
    torch.testing.assert_close(packed.eval()(**batch), plain.eval()(**batch))


def test_families_that_cannot_pack_stay_as_they_are():
    plain, packed = stacks("mpnet")
    batch = random_batch(6, 7, types=False)
    assert torch.equal(packed.eval()(**batch), plain.eval()(**batch))
