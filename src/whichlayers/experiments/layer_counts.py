"""Numbers of layers that depend on the depth of a model: "half", "depth" and, for 3 layers fewer, "depth-3"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from whichlayers.config.validators import as_tuple
from whichlayers.experiments.base import DepthError
from whichlayers.text import join_list

_BELOW_DEPTH = re.compile(r"depth-([1-9][0-9]{0,3})")


def _layer_counts(value: Any) -> Literal["all"] | tuple[int | str, ...]:
    """Validator: "all", or one or more integers of at least 0, "half", "depth" or "depth-N", as a tuple."""
    values = as_tuple(value)
    if value == "all":
        return "all"
    if values and all(map(_is_valid, values)):
        return values
    raise ValueError(
        'allowed: "all", or a list of integers of at least 0, "half", "depth", or "depth-N" for N layers fewer, such as'
        ' [1, 6, "depth-1"]'
    )


def _is_valid(value: Any) -> bool:
    if isinstance(value, str):
        return value in ("half", "depth") or _BELOW_DEPTH.fullmatch(value) is not None
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


LayerCounts = Annotated[Literal["all"] | tuple[int | str, ...], PlainValidator(_layer_counts)]


def resolve_counts(counts: Literal["all"] | tuple[int | str, ...], depth: int) -> list[int]:
    """The distinct numbers of layers for a model with `depth` layers, for which `count_errors` is empty."""
    if counts == "all":
        return list(range(depth + 1))
    return list(dict.fromkeys(_resolve(count, depth) for count in counts))


def count_errors(
    key: str, counts: Literal["all"] | tuple[int | str, ...], depth: int, what: str
) -> Iterator[DepthError]:
    """Numbers of layers that a model with `depth` layers does not have.

    Args:
        key: Key of the setting.
        counts: Its value.
        depth: Number of layers of the model.
        what: What the numbers are, such as "can be kept".
    """
    for count in counts if counts != "all" else ():
        if isinstance(count, str) and _resolve(count, depth) < 0:
            yield DepthError(key, count, f'0 to {depth} layers {what}, so at most "depth-{depth}"')
        elif isinstance(count, int) and count > depth:
            yield DepthError(key, count, f"0 to {depth} layers {what}")


def counts_text(counts: Literal["all"] | tuple[int | str, ...]) -> str:
    """The values of k in a sentence: "every k", "k = 0, half of the layers and all but 1 or 2 layers"."""
    if counts == "all":
        return "every k"
    return f"k = {join_list(_count_names(counts))}"


def _count_names(counts: tuple[int | str, ...]) -> Iterable[str]:
    fewer = [int(str(count).removeprefix("depth-")) for count in counts if str(count).startswith("depth-")]
    names = {"half": "half of the layers", "depth": "all layers"}
    if fewer:
        noun = "layer" if fewer == [1] else "layers"
        names |= {f"depth-{n}": f"all but {join_list(fewer, 'or')} {noun}" for n in fewer}
    return dict.fromkeys(names.get(str(count), str(count)) for count in counts)


def _resolve(count: int | str, depth: int) -> int:
    if isinstance(count, int):
        return count
    return depth // 2 if count == "half" else depth - int(count.removeprefix("depth").removeprefix("-") or 0)
