"""Re-initialize, permute and drop the layers of a pretrained model.

`apply_surgery` and `reorder` return a new model and do not modify their argument. `initial_values` defines the recipes
of re-initialization; the engine, which writes the parameters of many trials into one stacked model, uses it as well.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import TypeVar, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.models.structure import INIT_STD, ModelStructure, OwnInit, is_bias
from whichlayers.trial import Recipe, Surgery

Model = TypeVar("Model", bound=PreTrainedModel)

STATISTICS_RECIPES = ("shuffled", "mean_var")  # keep the statistics of the pretrained parameter
CUTOFF = 0.04  # as_described: two standard deviations
CUTOFF_AS_RELEASED = 0.04 * INIT_STD  # the authors passed 0.04 to scipy's truncnorm, whose bounds are in stds
PER_LAYER_KEYS = ("layer_types", "no_rope_layers")  # lists in the config with a value for each layer
DEPTH_ATTRIBUTES = ("n_layer", "n_layers", "num_layers", "num_hidden_layers")  # where modules store the depth


def initial_values(
    name: str,
    pretrained: Tensor,
    is_layer_norm: bool,
    is_bias: bool,
    recipe: Recipe,
    seed: int,
    keep_layer_norm: bool = False,
    own_init: OwnInit | None = None,
) -> Tensor | None:
    """New values of one parameter of a re-initialized layer.

    Args:
        name: Full name of the parameter in the resulting encoder, after any reordering. Name and seed alone
            determine the random values, independent of the device and of other parameters.
        pretrained: Its pretrained values, which determine shape and device of the result, and with the recipes
            in `STATISTICS_RECIPES` its distribution.
        is_layer_norm: Whether it belongs to a layer norm.
        is_bias: Whether it is a bias.
        recipe: Recipe of re-initialization.
        seed: Seed of the trial.
        keep_layer_norm: Keep the pretrained layer norms.
        own_init: How the model's own code initializes this parameter, see `ModelStructure.own_init`: for
            `model_init`, and the value that layer norms are reset to. Default: as in BERT.

    Returns:
        A float32 tensor, or None if the recipe keeps the pretrained values.
    """
    if recipe not in get_args(Recipe):
        raise WhichlayersError(f"unknown recipe {recipe!r}: choose one of {', '.join(get_args(Recipe))}.")
    own_init = own_init or OwnInit()
    shape, device = tuple(pretrained.shape), pretrained.device
    if is_layer_norm and keep_layer_norm:
        return None
    if recipe == "weights_only" and (is_layer_norm or is_bias):
        return None
    if recipe == "shuffled":
        return rng.shuffled(seed, name, pretrained.float())
    if recipe == "mean_var":
        mean, std = pretrained.double().mean(), pretrained.double().std(correction=0)
        return rng.normal(seed, name, shape, 1.0, device) * std.float() + mean.float()
    if is_layer_norm:
        if recipe != "as_described_v1":
            return torch.full(shape, 0.0 if is_bias else own_init.norm_weight, device=device)
    elif is_bias and recipe == "as_released":
        return None
    elif is_bias and (recipe == "bert_init" or (recipe == "model_init" and not own_init.draws_bias)):
        return torch.zeros(shape, device=device)
    elif recipe == "model_init":
        if own_init.cutoff is None:
            return rng.normal(seed, name, shape, own_init.std, device)
        return rng.truncated_normal(seed, name, shape, own_init.std, own_init.cutoff, device)
    cutoff = CUTOFF_AS_RELEASED if recipe == "as_released" else CUTOFF
    return rng.truncated_normal(seed, name, shape, INIT_STD, cutoff, device)


def apply_surgery(model: Model, surgery: Surgery, seed: int) -> Model:
    """A copy of the model with the surgery of a trial; everything else, such as the embeddings, is unchanged.

    Layers are reordered or dropped first, then re-initialized, numbered as in the new order.
    """
    result = reorder(model, surgery.order) if surgery.order is not None else copy.deepcopy(model)
    _reinitialize_in_place(result, surgery, seed)
    return result


def reorder(model: Model, order: Sequence[int]) -> Model:
    """A copy with the pretrained layers in this order; layers that are not listed are dropped."""
    result = copy.deepcopy(model)
    _reorder_in_place(result, order)
    return result


def check_order(structure: ModelStructure, order: Sequence[int]) -> None:
    """Raise if an order is empty, repeats a layer, has an unknown layer, or moves a first layer that must not move."""
    if not order:
        raise WhichlayersError("order is empty: it must list at least one layer.")
    check_layers(order, structure.depth)
    repeated = sorted({n for n in order if list(order).count(n) > 1})
    if repeated:
        raise WhichlayersError(
            f"order {tuple(order)} lists layer {repeated[0]} more than once; list each layer at most once."
        )
    reason = structure.family.first_layer_fixed
    if reason and order[0] != 1:
        raise WhichlayersError(
            f"order {tuple(order)} moves or drops layer 1 of a {structure.model.config.model_type} model: "
            f"{reason}. Use an order that starts with 1."
        )


def check_layers(layers: Collection[int], depth: int) -> None:
    """Raise unless all layer numbers are in 1..depth."""
    unknown = sorted(n for n in set(layers) if not 1 <= n <= depth)
    if unknown:
        raise WhichlayersError(
            f"there is no layer {unknown[0]}: this model has layers 1 to {depth} (the embeddings, layer 0, "
            "cannot be re-initialized, moved or dropped)."
        )


@torch.no_grad()
def _reinitialize_in_place(model: PreTrainedModel, surgery: Surgery, seed: int) -> None:
    structure = ModelStructure(model)
    check_layers(surgery.reinit, structure.depth)
    layer_norms = structure.layer_norm_names()
    chosen = {
        name: parameter
        for number in sorted(set(surgery.reinit))
        for name, parameter in structure.layer_parameters(number).items()
    }
    if surgery.reinit_pooler:
        chosen |= {name: p for name, p in model.named_parameters() if structure.is_pooler(name)}
    for name, parameter in chosen.items():
        values = initial_values(
            name,
            parameter,
            name in layer_norms,
            is_bias(name),
            surgery.recipe,
            seed,
            surgery.keep_layer_norm,
            structure.own_init(name, structure.depth),
        )
        if values is not None:
            parameter.copy_(values)


def _reorder_in_place(model: PreTrainedModel, order: Sequence[int]) -> None:
    structure = ModelStructure(model)
    check_order(structure, order)
    layers = nn.ModuleList(structure.layers[n - 1] for n in order)
    parent_path, _, attribute = structure.family.layers.rpartition(".")
    parent = model.get_submodule(parent_path)
    setattr(parent, attribute, layers)

    # Config and modules must agree with the new depth, otherwise a saved model could not be loaded.
    model.config.num_hidden_layers = len(order)  # transformers maps this to n_layer, n_layers
    for key in PER_LAYER_KEYS:  # each layer keeps its kind of attention
        if getattr(model.config, key, None):
            setattr(model.config, key, [getattr(model.config, key)[n - 1] for n in order])
    for module_with_depth in (model, parent):
        for key in DEPTH_ATTRIBUTES:
            if isinstance(vars(module_with_depth).get(key), int):
                setattr(module_with_depth, key, len(order))
    for index, layer in enumerate(layers):
        for module in layer.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                module.layer_idx = index  # type: ignore[assignment]
