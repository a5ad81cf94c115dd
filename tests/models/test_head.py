"""The task head against a computation by hand, for every family."""

import pytest
import torch
from plain_loop import HuggingFaceClassifier
from small_models import DECODER_NAMES, FAMILY_NAMES, same_state, small_batch, small_model

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.models.families import FAMILIES
from whichlayers.models.head import Classifier, build_classifier, cls_states, mean_states


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_mean_head_by_hand(family):
    encoder, batch = small_model(family), small_batch()
    classifier = build_classifier(encoder, "mean", 3, seed=1).eval()
    hidden = encoder(**batch).last_hidden_state
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        features = hidden[row, :length].mean(0)
        expected = classifier.classifier.weight @ features + classifier.classifier.bias
        torch.testing.assert_close(classifier(**batch)[row], expected)


@torch.no_grad()
@pytest.mark.parametrize("family", DECODER_NAMES)
def test_last_head_is_that_of_hugging_face(family):
    encoder, batch = small_model(family), small_batch()
    classifier = build_classifier(encoder, "last", 3, seed=1).eval()
    expected = HuggingFaceClassifier(encoder, 3, 1).eval()
    assert classifier.classifier.bias is None
    torch.testing.assert_close(classifier(**batch), expected(**batch), rtol=1e-4, atol=1e-5)


def test_last_head_is_for_decoders():
    with pytest.raises(WhichlayersError, match='Use head = "mean"'):
        build_classifier(small_model("bert"), "last", 2, seed=0)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_padding_does_not_change_a_row(family):
    classifier = build_classifier(small_model(family), "mean", 2, seed=1).eval()
    batch = small_batch()
    together = classifier(**batch)
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        alone = classifier(
            batch["input_ids"][row : row + 1, :length], batch["attention_mask"][row : row + 1, :length]
        )
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_pooler_head_by_hand(family):
    encoder, batch = small_model(family), small_batch()
    classifier = build_classifier(encoder, "pooler", 2, seed=1).eval()
    first = encoder(**batch).last_hidden_state[:, 0]
    pooled = torch.tanh(first @ encoder.pooler.dense.weight.T + encoder.pooler.dense.bias)
    torch.testing.assert_close(classifier(**batch), pooled @ classifier.classifier.weight.T)


@pytest.mark.parametrize("family", ["xlnet", "distilbert", "electra", "deberta-v2", "modernbert"])
def test_pooler_head_is_rejected_without_a_pooler(family):
    with pytest.raises(WhichlayersError, match='head = "mean"'):
        build_classifier(small_model(family), "pooler", 2, seed=0)


def test_pooler_head_is_rejected_if_the_pooler_is_not_pretrained():
    encoder = small_model("bert")
    encoder.pooler = None  # as load_encoder does then
    with pytest.raises(WhichlayersError, match="pretrained pooler"):
        build_classifier(encoder, "pooler", 2, seed=0)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_token_types_are_passed_to_models_that_use_them(family):
    classifier = build_classifier(small_model(family), "mean", 2, seed=0).eval()
    batch = small_batch()
    types = torch.zeros_like(batch["input_ids"])
    types[:, 3:] = 1
    change = (classifier(**batch, token_type_ids=types) - classifier(**batch)).abs().max()
    takes = family in ("bert", "roberta", "electra", "xlnet")  # these small models have two token types
    assert classifier.takes_token_types == takes
    assert (change > 1e-5) == takes


def test_token_types_are_not_used_with_a_single_type():
    encoder = small_model("roberta")
    encoder.config.type_vocab_size = 1
    assert not Classifier(encoder, "mean", 2).takes_token_types


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("bert", "hidden_dropout_prob"),
        ("xlnet", "dropout"),
        ("distilbert", "dropout"),
        ("modernbert", "mlp_dropout"),
        ("gpt2", "resid_pdrop"),
        ("opt", "dropout"),
    ],
)
def test_dropout_comes_from_the_config(family, key):
    encoder = small_model(family)
    setattr(encoder.config, key, 0.37)
    assert Classifier(encoder, "mean", 2).dropout.p == 0.37


def test_names_initial_values_and_copy():
    encoder, twin = small_model("bert"), small_model("bert")
    classifier = build_classifier(encoder, "pooler", 5, seed=8)
    assert [name for name, _ in classifier.named_children()] == ["encoder", "dropout", "classifier"]
    assert torch.equal(classifier.classifier.weight, rng.normal(8, "classifier.weight", (5, 32), 0.02))
    assert not classifier.classifier.bias.any()
    assert same_state(classifier.encoder, encoder)
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.zero_()
    assert same_state(encoder, twin)


def test_mean_head_has_no_pooler():
    encoder = small_model("bert")
    names = {name for name, _ in build_classifier(encoder, "mean", 2, seed=0).encoder.named_parameters()}
    assert names == {name for name, _ in encoder.named_parameters() if not name.startswith("pooler")}


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_parameter_gets_a_gradient(family):
    classifier = build_classifier(small_model(family), "mean", 2, seed=0)
    batch = small_batch()
    classifier(**batch, token_type_ids=batch["attention_mask"]).sum().backward()
    unused = {name for name, p in classifier.named_parameters() if p.grad is None}
    assert unused <= {"encoder.mask_emb"}  # of XLNet's two-stream pretraining


def test_an_unknown_head_is_rejected():
    with pytest.raises(WhichlayersError, match="mean, pooler, last"):
        build_classifier(small_model("bert"), "cls", 2, seed=0)  # type: ignore[arg-type]


def test_cls_token_is_the_first_or_the_last_before_the_padding():
    hidden = torch.arange(24.0).view(2, 4, 3)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    assert torch.equal(cls_states(hidden, mask, "first"), hidden[:, 0])
    assert torch.equal(cls_states(hidden, mask, "last"), torch.stack([hidden[0, 3], hidden[1, 1]]))
    last = {name for name, family in FAMILIES.items() if family.cls_position == "last"}
    assert last == {"xlnet", *(name for name, family in FAMILIES.items() if family.causal)}


def test_mean_of_a_row_without_tokens_is_zero():
    assert torch.equal(mean_states(torch.ones(1, 2, 3), torch.zeros(1, 2)), torch.zeros(1, 3))
