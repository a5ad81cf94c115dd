"""Distributions of all recipes, parameters that must not change, reordered models against layers run by hand."""

import numpy as np
import pytest
import torch
from scipy import stats
from small_models import (
    DECODER_NAMES,
    ENCODER_NAMES,
    FAMILY_NAMES,
    same_state,
    small_batch,
    small_config,
    small_model,
)
from transformers import AutoModel

from whichlayers.errors import WhichlayersError
from whichlayers.models import surgery
from whichlayers.models.find import resolve
from whichlayers.models.load import load_encoder
from whichlayers.models.structure import ModelStructure, is_bias
from whichlayers.trial import Surgery

RECIPES = ["as_described", "as_described_v1", "as_released", "weights_only", "bert_init"]
STATISTICS_RECIPES = ["shuffled", "mean_var"]
DESCRIBED = stats.truncnorm(-2, 2, scale=0.02)
RELEASED = stats.truncnorm(-0.04, 0.04, scale=0.02)  # as in the authors' public code
DISTRIBUTIONS = {"described": DESCRIBED, "released": RELEASED}

# expected values of (weights, biases, layer norm weights, layer norm biases)
TABLE = {
    "as_described": ("described", "described", 1.0, 0.0),
    "as_described_v1": ("described", "described", "described", "described"),
    "as_released": ("released", "kept", 1.0, 0.0),
    "weights_only": ("described", "kept", "kept", "kept"),
    "bert_init": ("described", 0.0, 1.0, 0.0),
}
FINAL_NORM = dict.fromkeys(DECODER_NAMES, "norm") | {
    "modernbert": "final_norm",
    "gpt2": "ln_f",
    "gpt_neox": "final_layer_norm",
    "opt": "decoder.final_layer_norm",
}
ORDERS = [(1, 3, 2, 4), (1, 4), (1, 2)]  # all start with 1, so they are valid for every family


def reinitialize(model, layers, recipe="as_described", seed=0, keep_layer_norm=False):
    return surgery.apply_surgery(model, Surgery(None, tuple(layers), recipe, keep_layer_norm), seed)


def check_values(values: torch.Tensor | None, expected, shape) -> None:
    if expected == "kept":
        assert values is None
        return
    assert values is not None
    assert values.shape == shape
    assert values.dtype == torch.float32
    if isinstance(expected, float):
        assert torch.equal(values, torch.full(shape, expected))
        return
    distribution = DISTRIBUTIONS[expected]
    sample = values.double().flatten().numpy()
    assert np.abs(sample).max() <= distribution.support()[1] * (1 + 1e-6)
    assert sample.std() == pytest.approx(distribution.std(), rel=0.01)
    assert sample.mean() == pytest.approx(0, abs=5 * distribution.std() / len(sample) ** 0.5)
    assert stats.kstest(sample, distribution.cdf).pvalue > 0.001


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_follow_their_table(recipe):
    shape, pretrained = (300, 300), torch.full((300, 300), 0.7)
    kinds = [(False, False), (False, True), (True, False), (True, True)]
    for expected, (norm, bias) in zip(TABLE[recipe], kinds, strict=True):
        values = surgery.initial_values("some.name", pretrained, norm, bias, recipe, seed=3)
        check_values(values, expected, shape)
        kept = surgery.initial_values(
            "some.name", pretrained, norm, bias, recipe, seed=3, keep_layer_norm=True
        )
        if norm:
            assert kept is None
        else:
            check_values(kept, expected, shape)


def test_as_released_has_a_38_times_smaller_std_than_as_described():
    one = surgery.initial_values("w", torch.zeros(200, 200), False, False, "as_described", seed=0)
    other = surgery.initial_values("w", torch.zeros(200, 200), False, False, "as_released", seed=0)
    assert one is not None
    assert other is not None
    assert other.abs().max() <= 0.0008
    assert one.abs().max() > 0.039
    assert float(one.std() / other.std()) == pytest.approx(38, abs=0.5)


def skewed(shape) -> torch.Tensor:
    """Values with a mean, a scale and a shape of their own."""
    return torch.from_numpy(stats.gamma(2.0, scale=0.3).rvs(shape, random_state=0)).float() + 0.1


@pytest.mark.parametrize(("norm", "bias"), [(False, False), (False, True), (True, False), (True, True)])
def test_shuffled_keeps_exactly_the_pretrained_values_in_another_order(norm, bias):
    before = skewed((200, 300))
    values = surgery.initial_values("w", before, norm, bias, "shuffled", seed=1)
    assert values is not None
    assert torch.equal(values.flatten().sort().values, before.flatten().sort().values)
    correlation = np.corrcoef(values.flatten(), before.flatten())[0, 1]
    assert abs(correlation) < 5 / before.numel() ** 0.5, "the order is random"
    assert (values == before).float().mean() < 0.01
    again = surgery.initial_values("w", before, norm, bias, "shuffled", seed=1)
    other = surgery.initial_values("w", before, norm, bias, "shuffled", seed=2)
    assert torch.equal(values, again)
    assert not torch.equal(values, other)


@pytest.mark.parametrize(("norm", "bias"), [(False, False), (True, True)])
def test_mean_var_draws_from_a_normal_with_the_pretrained_mean_and_sd(norm, bias):
    before = skewed((300, 300))
    values = surgery.initial_values("w", before, norm, bias, "mean_var", seed=1)
    assert values is not None
    mean, sd = before.double().mean().item(), before.double().numpy().std()
    sample = values.double().flatten().numpy()
    assert stats.kstest(sample, stats.norm(mean, sd).cdf).pvalue > 0.001
    constant = surgery.initial_values("w", torch.full((4,), 0.3), norm, bias, "mean_var", seed=1)
    assert torch.equal(constant, torch.full((4,), 0.3))


@pytest.mark.parametrize("recipe", STATISTICS_RECIPES)
def test_recipes_that_keep_statistics_take_those_of_the_layer_that_was_moved_there(recipe):
    model = small_model("bert")
    with torch.no_grad():
        model.encoder.layer[3].output.dense.weight.mul_(100)
    moved = surgery.apply_surgery(model, Surgery((1, 4), (2,), recipe), seed=0)
    new, old = moved.encoder.layer[1].output.dense.weight, model.encoder.layer[3].output.dense.weight
    assert new.std().item() == pytest.approx(old.std().item(), rel=0.05)
    assert not torch.equal(new, old)
    kept = surgery.apply_surgery(model, Surgery(None, (2,), recipe, keep_layer_norm=True), seed=0)
    norm = "encoder.layer.1.output.LayerNorm.weight"
    assert torch.equal(kept.get_parameter(norm), model.get_parameter(norm))


def test_an_unknown_recipe_is_rejected():
    with pytest.raises(WhichlayersError, match="as_described_v1"):
        surgery.initial_values("w", torch.zeros(2), False, False, "xavier", seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("keep_layer_norm", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_only_the_given_layers_change_and_follow_the_recipe(family, recipe, keep_layer_norm):
    model = small_model(family)
    result = reinitialize(model, [2, 4], recipe, 11, keep_layer_norm)
    structure = ModelStructure(model)
    norms = structure.layer_norm_names()
    weight, bias, norm_weight, norm_bias = TABLE[recipe]
    if norm_weight == 1.0 and family.startswith("gemma"):  # its norms multiply by 1 + weight
        norm_weight = 0.0
    for name, before in model.named_parameters():
        after = result.get_parameter(name)
        if name in norms:
            expected = "kept" if keep_layer_norm else (norm_bias if is_bias(name) else norm_weight)
        else:
            expected = bias if is_bias(name) else weight
        if structure.layer_of(name) not in (2, 4) or expected == "kept":
            assert torch.equal(before, after), name
        elif isinstance(expected, float):
            assert (after == expected).all(), name
        else:
            assert after.abs().max() <= DISTRIBUTIONS[expected].support()[1] * (1 + 1e-6), name
            assert len(after.unique()) > after.numel() * 0.9, name
            assert not torch.equal(before, after), name


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_model_init_draws_what_the_family_initializes(family):
    """`model_init` against the values of a new model, which transformers draws with the family's `_init_weights`."""
    config = small_config(family)
    if hasattr(config, "initializer_range"):
        config.initializer_range = 0.3
    else:
        config.init_std = 0.3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        new = AutoModel.from_config(config)
    result = reinitialize(small_model(family), [2, 4], "model_init", seed=1)
    other = ModelStructure(result)
    other.model.config = config
    for number in (2, 4):
        for name, expected in ModelStructure(new).layer_parameters(number).items():
            kind = other.own_init(name, other.depth)
            norm = name in other.layer_norm_names()
            drawn = surgery.initial_values(
                name, expected, norm, is_bias(name), "model_init", 1, own_init=kind
            )
            if expected.numel() == 1 or expected.std() == 0:  # a constant: norms and most biases
                assert torch.equal(drawn, expected), name
                continue
            rel = 6 / expected.numel() ** 0.5  # of two standard deviations
            assert drawn.std().item() == pytest.approx(expected.std().item(), rel=rel), name
            assert abs(drawn.mean()) < 5 * drawn.std() / expected.numel() ** 0.5, name
            if family == "modernbert":
                assert drawn.abs().max() <= 3 * kind.std
                assert expected.abs().max() <= 3 * kind.std


def test_model_init_of_a_pruned_model_is_that_of_its_new_depth():
    short = surgery.apply_surgery(small_model("gpt2"), Surgery((2, 3), (1,), "model_init"), seed=0)
    weight = short.h[0].mlp.c_proj.weight
    assert weight.std().item() == pytest.approx(0.02 / (2 * 2) ** 0.5, rel=0.1)
    assert short.h[0].mlp.c_fc.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_a_layer_of_realistic_size_follows_the_distribution():
    from transformers import BertConfig

    model = AutoModel.from_config(
        BertConfig(vocab_size=10, hidden_size=256, num_hidden_layers=1, num_attention_heads=4)
    )
    result = reinitialize(model, [1], "as_described", 0)
    norms = ModelStructure(model).layer_norm_names()
    values = [
        p.detach().flatten() for n, p in ModelStructure(result).layer_parameters(1).items() if n not in norms
    ]
    check_values(torch.cat(values), "described", torch.cat(values).shape)


def test_initial_values_depend_only_on_seed_and_name():
    model = small_model("bert")
    all_layers = reinitialize(model, [1, 2, 3, 4], seed=1)
    one_layer = reinitialize(reinitialize(model, [2], seed=9), [3], seed=1)
    for name, parameter in ModelStructure(one_layer).layer_parameters(3).items():
        assert torch.equal(parameter, all_layers.get_parameter(name))
    name = "encoder.layer.2.output.dense.weight"
    other_seed = reinitialize(model, [3], seed=2).get_parameter(name)
    assert not torch.equal(other_seed, all_layers.get_parameter(name))
    neighbor = all_layers.get_parameter("encoder.layer.1.output.dense.weight")
    assert not torch.equal(neighbor, all_layers.get_parameter(name))


def test_global_random_state_is_neither_read_nor_changed():
    model = small_model("bert")
    torch.manual_seed(0)
    state = torch.get_rng_state()
    one = reinitialize(model, [1, 2], seed=4)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(99)
    assert same_state(one, reinitialize(model, [1, 2], seed=4))


def layers_run_by_hand(model, order, batch) -> torch.Tensor:
    """Record the arguments of each layer, then call the layers one after another in the new order."""
    calls = {}
    hooks = []
    layers = ModelStructure(model).layers
    for number, layer in enumerate(layers, start=1):

        def record(_module, args, kwargs, number=number):
            calls[number] = (args, kwargs)

        hooks.append(layer.register_forward_pre_hook(record, with_kwargs=True))
    model(**batch)
    for hook in hooks:
        hook.remove()
    hidden = calls[1][0][0]
    for number in order:
        args, kwargs = calls[number]
        output = layers[number - 1](hidden, *args[1:], **kwargs)
        hidden = output[0] if isinstance(output, tuple) else output
    if (norm := FINAL_NORM.get(model.config.model_type)) is not None:
        return model.get_submodule(norm)(hidden)
    return (
        hidden.permute(1, 0, 2) if model.config.model_type == "xlnet" else hidden
    )  # XLNet works on (L, B, H)


@torch.no_grad()
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("family", ENCODER_NAMES)
def test_a_reordered_model_runs_its_layers_in_that_order(family, order):
    model, batch = small_model(family), small_batch()
    expected = layers_run_by_hand(model, order, batch)
    result = surgery.reorder(model, order)
    found = result(**batch).last_hidden_state
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, model(**batch).last_hidden_state, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("order", [(4, 2, 1, 3), (2,), (3, 4)])
@pytest.mark.parametrize("family", [name for name in FAMILY_NAMES if name != "modernbert"])
def test_any_layer_can_be_first_if_the_family_allows_it(family, order):
    model, batch = small_model(family), small_batch()
    found = surgery.reorder(model, order)(**batch).last_hidden_state
    torch.testing.assert_close(found, layers_run_by_hand(model, order, batch))


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_reordered_model_can_be_saved_and_loaded(family, tmp_path):
    model, batch = small_model(family), small_batch()
    result = surgery.reorder(model, (1, 4, 3))
    result.save_pretrained(tmp_path)
    loaded = load_encoder(resolve(str(tmp_path)))
    assert loaded.config.num_hidden_layers == ModelStructure(loaded).depth == 3
    torch.testing.assert_close(loaded(**batch).last_hidden_state, result(**batch).last_hidden_state)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_config_and_layer_indices_match_the_new_order(family):
    result = surgery.reorder(small_model(family), (1, 4))
    assert result.config.num_hidden_layers == 2
    for module in result.modules():
        for key in ("n_layer", "n_layers"):
            assert vars(module).get(key, 2) == 2
    for index, layer in enumerate(ModelStructure(result).layers):
        assert {m.layer_idx for m in layer.modules() if hasattr(m, "layer_idx")} <= {index}


def test_config_keys_under_their_own_names():
    assert surgery.reorder(small_model("xlnet"), (1, 2, 3)).config.n_layer == 3
    assert surgery.reorder(small_model("distilbert"), (1, 2, 3)).config.n_layers == 3


def test_modernbert_layers_keep_their_attention_type():
    model = small_model("modernbert", depth=5)
    kinds = [layer.attention_type for layer in ModelStructure(model).layers]
    assert kinds == [
        "full_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ]
    result = surgery.reorder(model, (1, 4, 2, 5, 3))
    expected = [kinds[n - 1] for n in (1, 4, 2, 5, 3)]
    assert [layer.attention_type for layer in ModelStructure(result).layers] == expected
    assert result.config.layer_types == expected


@pytest.mark.parametrize("order", [(2, 1, 3, 4), (2, 3, 4)])
def test_modernbert_keeps_its_first_layer_first(order):
    with pytest.raises(WhichlayersError, match="no attention norm"):
        surgery.reorder(small_model("modernbert"), order)


def test_reorder_moves_the_weights():
    model = small_model("bert")
    moved = surgery.reorder(model, (3, 1, 4, 2))
    name = "encoder.layer.{}.output.dense.weight"
    for position, old in enumerate((3, 1, 4, 2)):
        assert torch.equal(
            moved.get_parameter(name.format(position)), model.get_parameter(name.format(old - 1))
        )


def test_apply_surgery_reorders_first_and_reinitializes_new_positions():
    model = small_model("bert")
    plan = Surgery(order=(3, 1, 2), reinit=(2,), recipe="as_released", keep_layer_norm=True)
    result = surgery.apply_surgery(model, plan, seed=6)
    assert same_state(result, reinitialize(surgery.reorder(model, (3, 1, 2)), [2], "as_released", 6, True))
    kept = result.get_parameter("encoder.layer.2.output.dense.weight")
    assert torch.equal(kept, model.get_parameter("encoder.layer.1.output.dense.weight"))
    assert same_state(surgery.apply_surgery(model, Surgery(), seed=6), model)


OPERATIONS = {
    "reinitialize": lambda m: reinitialize(m, [1, 3], "as_described_v1", 1),
    "permute": lambda m: surgery.reorder(m, (1, 4, 2, 3)),
    "drop": lambda m: surgery.reorder(m, (1, 2)),
    "apply_surgery": lambda m: surgery.apply_surgery(m, Surgery(order=(1, 2), reinit=(1, 2)), 1),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("family", ["bert", "xlnet", "distilbert", "modernbert"])
def test_the_argument_is_not_modified(family, operation):
    model, twin = small_model(family), small_model(family)
    result = OPERATIONS[operation](model)
    assert same_state(model, twin)
    assert model.config.to_dict() == twin.config.to_dict()
    assert [m.layer_idx for m in model.modules() if hasattr(m, "layer_idx")] == [
        m.layer_idx for m in twin.modules() if hasattr(m, "layer_idx")
    ]
    with torch.no_grad():
        for parameter in result.parameters():
            parameter.zero_()
    assert same_state(model, twin)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda m: reinitialize(m, [5]), "no layer 5.*1 to 4"),
        (lambda m: reinitialize(m, [0]), "no layer 0.*embeddings"),
        (lambda m: surgery.reorder(m, (1, 1, 2)), "layer 1 more than once"),
        (lambda m: surgery.reorder(m, (1, 6)), "no layer 6"),
        (lambda m: surgery.reorder(m, ()), "at least one layer"),
        (lambda m: surgery.apply_surgery(m, Surgery(order=(1, 2), reinit=(3,)), 0), "no layer 3.*1 to 2"),
    ],
)
def test_invalid_surgery_is_rejected(operation, message):
    with pytest.raises(WhichlayersError, match=message):
        operation(small_model("bert"))
