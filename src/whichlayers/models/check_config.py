"""Read config.json with transformers, and check its numbers before a model is built from them.

transformers builds whatever a config says: a million layers, or matrices of terabytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig
from transformers.activations import ACT2FN

from whichlayers.errors import WhichlayersError
from whichlayers.models.families import Family
from whichlayers.models.find import CONFIG, ModelFiles, weight_files
from whichlayers.text import counted, format_bytes

MAX_LAYERS = 1000
SMALLEST = 1000  # bytes; a smaller file is no model but, for example, a pointer of git lfs, which has its own message
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
OPTIONAL_SIZES = ("intermediate_size", "max_position_embeddings", "type_vocab_size")


def read_config(files: ModelFiles, family: Family) -> Any:
    """The transformers config of a model.

    Raises:
        WhichlayersError: transformers rejects it, a size is not a positive integer, or the weights cannot have it.
    """
    try:
        config = AutoConfig.from_pretrained(files.folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # many types: transformers checks the values in several ways
        raise _error(files, f"cannot be used: {one_line(error)}") from error
    for key in SIZES:
        value = getattr(config, key, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _error(files, f"has {key} = {value!r}, which must be an integer of at least 1")
    activation = getattr(config, "hidden_act", None)
    if isinstance(activation, str) and activation not in ACT2FN:
        known = f"known to transformers: {', '.join(ACT2FN)}"
        raise _error(files, f"has hidden_act = {activation!r}; {known}")
    if config.num_hidden_layers > MAX_LAYERS:
        layers = counted(config.num_hidden_layers, "layer")
        raise _error(files, f"says that the model has {layers}; at most {MAX_LAYERS:,} are supported")
    dropout = 0.0 if family.dropout is None else getattr(config, family.dropout)
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise _error(files, f"has {family.dropout} = {dropout!r}, which must be a number from 0 to below 1")
    # a weight takes at least a byte, and a model has at least one square matrix, and one weight for each other number
    available = sum(file.stat().st_size for file in weight_files(files.folder, files.allow_pickle))
    needed = {key: getattr(config, key, None) for key in (*SIZES, *OPTIONAL_SIZES)}
    needed["hidden_size"] = config.hidden_size**2
    for key, count in needed.items():
        if isinstance(count, int) and count > available > SMALLEST:
            raise _error(
                files,
                f"has {key} = {getattr(config, key):,}, more than the weights ({format_bytes(available)}) can have."
                " Check that it belongs to these weights.",
            )
    return config


def check_finite(files: ModelFiles, model: nn.Module) -> None:
    """Raise WhichlayersError if a weight is not a finite number: every result would be NaN."""
    bad = [name for name, weight in model.named_parameters() if not bool(torch.isfinite(weight).all())]
    if bad:
        raise WhichlayersError(
            f"model {files.name!r}: the weights in {files.folder} have values that are not finite numbers, in"
            f" {counted(len(bad), 'parameter')} ({', '.join(bad[:3])}{', ...' if len(bad) > 3 else ''}): the file is"
            " damaged, or its training diverged. Download the model again, or use another one."
        )


def one_line(error: BaseException) -> str:
    """The message of an error in one line, at most 300 characters long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def _error(files: ModelFiles, problem: str) -> WhichlayersError:
    return WhichlayersError(f"model {files.name!r}: {files.folder / CONFIG} {problem}")
