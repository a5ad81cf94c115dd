"""Packed layers compute the same as padded ones: outputs, gradients, dropout, evaluation."""

import pytest
import torch
from tiny import ENCODERS, random_batch, tiny_encoder

from whichlayers.engine.packing import PACKABLE_FAMILIES, FixedSizePacking, pack_layers
from whichlayers.engine.packing_cpu import RaggedPacking
from whichlayers.engine.stacking import stack_models
from whichlayers.models.families import FAMILIES
from whichlayers.models.head import build_classifier


def padded_and_packed(family: str, dropout: float | None = None, head: str = "mean", device: str = "cpu"):
    models = [build_classifier(tiny_encoder(family, i, dropout), head, 3, seed=i).eval() for i in range(3)]
    plain, packed = stack_models(models).to(device), stack_models(models).to(device)
    pack_layers(packed)
    return plain, packed


def small_window(family: str, stacked) -> None:
    """Give ModernBERT's local attention a window that is shorter than the sequences."""
    if family == "modernbert":
        next(m for m in stacked.modules() if hasattr(m, "config")).config.sliding_window = 3


def test_the_notes_on_families_name_those_that_are_not_packed():
    noted = {name for name, family in FAMILIES.items() if "not packed" in family.note}
    assert noted == set(FAMILIES) - PACKABLE_FAMILIES


@pytest.mark.parametrize("tokens", [None, 70, 80], ids=["ragged", "exact", "with a tail"])
@pytest.mark.parametrize("family", sorted(PACKABLE_FAMILIES & set(ENCODERS)))
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_are_those_of_padded_batches(family, training, tokens):
    compare_packed_with_padded(family, training, tokens)


def compare_packed_with_padded(
    family: str, training: bool, tokens: int | None, head: str = "mean", device: str = "cpu"
) -> None:
    batch = random_batch(3 * 6, 13, types=family in ("bert", "electra"))
    batch = {name: values.to(device) for name, values in batch.items()}
    if tokens == 70:
        tokens = int(batch["attention_mask"].view(3, -1).sum(1).max())
    keys, step = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([11, 22, 33], 5))
    outs, grads = [], []
    for s in padded_and_packed(family, 0.2, head, device):
        small_window(family, s)
        s.train(training).set_dropout_keys(keys, step, 6)
        s.context.packed_tokens = tokens
        out = s(**batch)
        out.square().sum().backward()
        outs.append(out)
        grads.append({n: p.grad for n, p in s.module.named_parameters() if p.grad is not None})
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-4, atol=1e-5)
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, rtol=1e-3, atol=3e-5, msg=lambda m, n=name: n + m)
    assert s.context.packing is None, "outside of the layers, activations are not packed"


def test_a_window_changes_the_output():
    batch = random_batch(3 * 6, 13, types=False)
    packed = padded_and_packed("modernbert")[1]
    before = packed.eval()(**batch)
    small_window("modernbert", packed)
    assert (packed(**batch) - before).abs().max() > 1e-4


def test_tokens_are_packed_in_order_and_unpacked():
    mask = random_batch(12, 9)["attention_mask"]
    packing = FixedSizePacking(mask, 3, 40)
    x = torch.randn(12, 9, 4) * mask[..., None]
    packed = packing.pack(x)
    for t in range(3):
        rows = [x[r, : mask[r].sum()] for r in range(4 * t, 4 * t + 4)]
        expected = torch.cat([*rows, torch.zeros(40 - sum(map(len, rows)), 4)])
        assert torch.equal(packed[t], expected)
    assert torch.equal(packing.unpack(packed), x)
    first = packing.starts.view(3, 4)
    assert first[:, 0].tolist() == [0, 40, 80]
    assert torch.equal(packed.flatten(0, 1)[packing.starts.long()], x[:, 0])


def test_unpack_inverts_pack():
    mask = random_batch(12, 9)["attention_mask"]
    packing = RaggedPacking.from_mask(mask, 3)
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
    assert RaggedPacking.from_mask(mask, 1) is None
    assert RaggedPacking.from_mask(torch.tensor([[1, 1, 1], [0, 0, 0]]), 1) is None
    plain, packed = padded_and_packed("bert")
    batch = random_batch(6, 7)
    batch["attention_mask"] = batch["attention_mask"].flip(1)
    torch.testing.assert_close(packed.eval()(**batch), plain.eval()(**batch))


def test_families_that_cannot_be_packed_are_unchanged():
    plain, packed = padded_and_packed("xlnet")
    batch = random_batch(6, 7, types=False)
    assert torch.equal(packed.eval()(**batch), plain.eval()(**batch))
