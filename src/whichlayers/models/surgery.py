"""Operations on a pretrained encoder: re-initialise, permute, prune and truncate its layers.

Every function here is pure: it returns a new model and leaves its argument as it was. The recipes of
re-initialisation are written once, in `initial_values`; the engine, which writes many trials' parameters into
one stacked model, calls that function too.
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
from whichlayers.models.anatomy import Anatomy, is_bias
from whichlayers.trial import Recipe, Surgery

Model = TypeVar("Model", bound=PreTrainedModel)

SD = 0.02
CUT = 0.04  # as_described: two standard deviations
CUT_AS_RELEASED = 0.04 * SD  # the authors' 0.04 went to scipy's truncnorm, whose bounds are in units of sd
DEPTH_ATTRIBUTES = (
    "n_layer",
    "n_layers",
    "num_layers",
    "num_hidden_layers",
)  # how modules remember the depth


def initial_values(
    name: str,
    shape: Sequence[int],
    is_layer_norm: bool,
    is_bias: bool,
    recipe: Recipe,
    seed: int,
    device: torch.device | str = "cpu",
    keep_layer_norm: bool = False,
) -> Tensor | None:
    """The new float32 values of one parameter of a re-initialised layer, or None where the recipe keeps it.

    `name` is the parameter's full name in the encoder that results, after any reordering: with the seed it
    decides the draw, whatever else is drawn, in which order and on which device.
    """
    if recipe not in get_args(Recipe):
        raise WhichlayersError(
            f"recipe {recipe!r} is not known: choose one of {', '.join(get_args(Recipe))}."
        )
    if is_layer_norm:
        if keep_layer_norm:
            return None
        if recipe != "as_described_v1":
            return torch.full(tuple(shape), 0.0 if is_bias else 1.0, device=device)
    elif is_bias and recipe == "as_released":
        return None
    elif is_bias and recipe == "bert_init":
        return torch.zeros(tuple(shape), device=device)
    cut = CUT_AS_RELEASED if recipe == "as_released" else CUT
    return rng.truncated_normal(seed, name, shape, SD, cut, device)


def reinitialise(
    model: Model,
    layers: Collection[int],
    recipe: Recipe = "as_described",
    seed: int = 0,
    keep_layer_norm: bool = False,
) -> Model:
    """Draw the named layers anew; all else (embeddings, pooler, other layers) stays bit for bit."""
    result = copy.deepcopy(model)
    _reinitialise_in_place(result, layers, recipe, seed, keep_layer_norm)
    return result


def keep_first(
    model: Model, k: int, recipe: Recipe = "as_described", seed: int = 0, keep_layer_norm: bool = False
) -> Model:
    """Keep layers 1..k and draw those above anew; k = 0 keeps the embeddings alone."""
    depth = Anatomy(model).depth
    if not 0 <= k <= depth:
        raise WhichlayersError(f"cannot keep the first {k} layers: give a number from 0 to {depth}.")
    return reinitialise(model, range(k + 1, depth + 1), recipe, seed, keep_layer_norm)


def preserve(
    model: Model,
    layers: Collection[int],
    recipe: Recipe = "as_described",
    seed: int = 0,
    keep_layer_norm: bool = False,
) -> Model:
    """Keep the named layers and draw all others anew."""
    depth = Anatomy(model).depth
    _check_layers(layers, depth)
    others = [n for n in range(1, depth + 1) if n not in layers]
    return reinitialise(model, others, recipe, seed, keep_layer_norm)


def reorder(model: Model, order: Sequence[int]) -> Model:
    """Let the pretrained layers stand in this order; layers that it does not name are dropped."""
    result = copy.deepcopy(model)
    _reorder_in_place(result, order)
    return result


def permute(model: Model, order: Sequence[int]) -> Model:
    """Reorder all layers: (3, 1, 2) puts the old layer 3 first."""
    depth = Anatomy(model).depth
    if sorted(order) != list(range(1, depth + 1)):
        raise WhichlayersError(
            f"{tuple(order)} is no permutation of the layers 1 to {depth}: name each of them once."
        )
    return reorder(model, order)


def prune(model: Model, drop: Collection[int]) -> Model:
    """Drop the named layers, close the gap."""
    depth = Anatomy(model).depth
    _check_layers(drop, depth)
    return reorder(model, [n for n in range(1, depth + 1) if n not in drop])


def truncate(model: Model, k: int) -> Model:
    """Drop all layers above layer k."""
    depth = Anatomy(model).depth
    if not 1 <= k <= depth:
        raise WhichlayersError(f"cannot truncate to {k} layers: give a number from 1 to {depth}.")
    return reorder(model, range(1, k + 1))


def operate(model: Model, surgery: Surgery, seed: int) -> Model:
    """All that a trial's surgery asks for: first the order, then the draws, at positions of the new order."""
    result = copy.deepcopy(model)
    if surgery.order is not None:
        _reorder_in_place(result, surgery.order)
    _reinitialise_in_place(result, surgery.reinit, surgery.recipe, seed, surgery.keep_layer_norm)
    return result


def check_order(anatomy: Anatomy, order: Sequence[int]) -> None:
    """Refuse an order that names a layer twice or one that is not there, or that the family cannot bear."""
    if not order:
        raise WhichlayersError(
            "an order of layers must name at least one layer: a model without layers has no use."
        )
    _check_layers(order, anatomy.depth)
    repeated = sorted({n for n in order if list(order).count(n) > 1})
    if repeated:
        raise WhichlayersError(f"order {tuple(order)} names layer {repeated[0]} more than once.")
    reason = anatomy.family.first_layer_stays
    if reason and order[0] != 1:
        raise WhichlayersError(
            f"order {tuple(order)} moves or drops layer 1 of a {anatomy.model.config.model_type} model: "
            f"{reason}. Give an order that begins with 1."
        )


def _check_layers(layers: Collection[int], depth: int) -> None:
    wrong = sorted(n for n in set(layers) if not 1 <= n <= depth)
    if wrong:
        raise WhichlayersError(
            f"there is no layer {wrong[0]}: this model's layers are 1 to {depth} (the embeddings, layer 0, "
            "are never re-initialised, moved or dropped)."
        )


@torch.no_grad()
def _reinitialise_in_place(
    model: PreTrainedModel, layers: Collection[int], recipe: Recipe, seed: int, keep_layer_norm: bool
) -> None:
    anatomy = Anatomy(model)
    _check_layers(layers, anatomy.depth)
    layer_norms = anatomy.layer_norm_names()
    for number in sorted(set(layers)):
        for name, parameter in anatomy.layer_parameters(number).items():
            values = initial_values(
                name,
                parameter.shape,
                name in layer_norms,
                is_bias(name),
                recipe,
                seed,
                parameter.device,
                keep_layer_norm,
            )
            if values is not None:
                parameter.copy_(values)


def _reorder_in_place(model: PreTrainedModel, order: Sequence[int]) -> None:
    anatomy = Anatomy(model)
    check_order(anatomy, order)
    layers = nn.ModuleList(anatomy.layers[n - 1] for n in order)
    parent_path, _, attribute = anatomy.family.layers.rpartition(".")
    parent = model.get_submodule(parent_path)
    setattr(parent, attribute, layers)

    # The config and the modules must agree with the new depth, or a saved model would not load again.
    model.config.num_hidden_layers = len(order)  # transformers maps this to n_layer, n_layers
    if getattr(model.config, "layer_types", None):  # each layer carries its kind of attention along
        model.config.layer_types = [model.config.layer_types[n - 1] for n in order]
    for holder in (model, parent):
        for key in DEPTH_ATTRIBUTES:
            if isinstance(vars(holder).get(key), int):
                setattr(holder, key, len(order))
    for index, layer in enumerate(layers):
        for module in layer.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                module.layer_idx = index  # type: ignore[assignment]
