"""Measured costs of models, in costs.json of a study folder: parameters, size on disk and latency."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whichlayers.files import atomic_write

COSTS_FILE = "costs.json"


@dataclass(frozen=True)
class ModelCost:
    """Cost of a model that keeps some of its layers, for inference."""

    model_fingerprint: str
    layers: tuple[int, ...]  # the layers that are kept, in order
    parameters: int
    bytes: int  # of its weights in float32
    milliseconds: float  # median time of one text on `device`
    tokens: int  # of that text
    device: str


def read_costs(folder: Path) -> list[ModelCost]:
    """The costs stored in a study folder; empty if there are none, or if the file is damaged."""
    try:
        stored = json.loads((folder / COSTS_FILE).read_text(encoding="utf-8"))
        return [ModelCost(**cost | {"layers": tuple(cost["layers"])}) for cost in stored]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def write_costs(folder: Path, costs: Sequence[ModelCost]) -> None:
    """Replace the costs stored in a study folder."""
    with atomic_write(folder / COSTS_FILE) as partial:
        partial.write_text(
            json.dumps([dataclasses.asdict(cost) for cost in costs], indent=1), encoding="utf-8"
        )


def find_cost(costs: Sequence[ModelCost], fingerprint: str, layers: Sequence[int]) -> ModelCost | None:
    """The cost of a model with these layers; None if it was not measured."""
    same = (c for c in costs if c.model_fingerprint == fingerprint and c.layers == tuple(layers))
    return next(same, None)
