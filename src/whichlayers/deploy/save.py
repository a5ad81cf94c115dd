"""Write a finetuned model as a folder that transformers, sentence-transformers and `load_model` read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.deploy.adapters import ADAPTER_FOLDER, save_adapter
from whichlayers.deploy.text_model import DENSE, METADATA_FILE, Metadata
from whichlayers.deploy.train import TrainedModel
from whichlayers.errors import WhichlayersError
from whichlayers.trial import Pooling

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

POOLING = "1_Pooling"  # folder
CHECKED_TEXTS = ("a", "The café isn't far: about 1,990 steps.")  # tokenized before and after saving


def layout_of(encoder: PreTrainedModel, head: str) -> str:
    """How a model is saved: as a sequence classification model, or as modules of sentence-transformers."""
    from whichlayers.models.sequence_classification import has_equivalent

    return "sequence_classification" if has_equivalent(encoder, head) else "sentence_transformers"


def save_model(
    folder: Path, model: TrainedModel, tokenizer: PreTrainedTokenizerFast, metadata: Metadata
) -> None:
    """Write weights, config, tokenizer and metadata into an existing folder.

    The config has the true depth and the names of the labels. With the mean head, the folder also has the modules of
    sentence-transformers: Transformer, mean pooling, and the linear layer as Dense. Adapters are merged into the
    weights, and also saved on their own.
    """
    from whichlayers.models.load import save_quietly

    set_labels(model.encoder, metadata)
    set_padding(model.encoder, tokenizer, metadata.head)
    if metadata.layout == "sequence_classification":
        from whichlayers.models.sequence_classification import to_sequence_classifier

        save_quietly(to_sequence_classifier(model.encoder, model.weight, model.bias), folder)
    else:
        save_quietly(model.encoder, folder)
        modules = ["Transformer", "Pooling", "Dense"]
        _write_sentence_transformer(folder, modules, model.encoder.config.hidden_size, metadata.max_length)
        (folder / DENSE).mkdir()
        _write_dense(folder / DENSE, model.weight, model.bias, "torch.nn.modules.linear.Identity")
    trial = model.trial
    if trial.adapter is not None:
        save_adapter(folder / ADAPTER_FOLDER, model.encoder, trial.adapter, model.adapter, trial.model)
    _save_rest(folder, tokenizer, metadata)


def save_features(
    folder: Path,
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    metadata: Metadata,
    pooling: Pooling = "mean",
) -> None:
    """Write a frozen encoder without a head for sentence-transformers: Transformer, and the pooling of the probe.

    With the pooling "pooler", the pretrained pooler follows as Dense.
    """
    from whichlayers.models.load import save_quietly
    from whichlayers.models.structure import ModelStructure

    family = ModelStructure(encoder).family
    set_padding(encoder, tokenizer, metadata.head)
    save_quietly(encoder, folder)
    modules = ["Transformer", "Pooling"]
    token = "lasttoken" if family.cls_position == "last" else "cls_token"
    if pooling == "pooler":
        dense: Any = encoder.get_submodule(f"{family.pooler}.dense")
        (folder / DENSE).mkdir()
        _write_dense(folder / DENSE, dense.weight, dense.bias, "torch.nn.modules.activation.Tanh")
        modules.append("Dense")
    _write_sentence_transformer(
        folder,
        modules,
        encoder.config.hidden_size,
        metadata.max_length,
        "mean_tokens" if pooling == "mean" else token,
    )
    _save_rest(folder, tokenizer, metadata)


def set_labels(encoder: PreTrainedModel, metadata: Metadata) -> None:
    """Write the labels and the kind of task into the encoder's config."""
    config = encoder.config
    if metadata.labels:
        config.id2label = dict(enumerate(metadata.labels))
        config.label2id = {name: i for i, name in enumerate(metadata.labels)}
        config.problem_type = "single_label_classification"
    else:
        config.num_labels = 1
        config.problem_type = "regression"


def set_padding(encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, head: str) -> None:
    """Give a tokenizer a padding token if it has none, since other libraries pad batches with it.

    It is the end-of-text token, which no text contains. The head "last" reads the last token that is not padding: the
    config of its model has the padding token, too.
    """
    missing = tokenizer.pad_token_id is None
    if missing:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    if missing or head == "last":
        encoder.config.pad_token_id = tokenizer.pad_token_id


def _save_rest(folder: Path, tokenizer: PreTrainedTokenizerFast, metadata: Metadata) -> None:
    save_tokenizer(folder, tokenizer)
    _write_json(folder / METADATA_FILE, dataclasses.asdict(metadata))


def save_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a tokenizer next to a saved model, such that `AutoTokenizer` loads one that gives the same tokens.

    Some classes (GPTNeoXTokenizer) replace the special tokens that tokenizer.json adds to a text when they are loaded.
    If so, the folder names the generic class, which takes tokenizer.json as it is.
    """
    from whichlayers.models.tokenizers import load_saved_tokenizer, without_truncation

    saved = without_truncation(tokenizer)
    saved.save_pretrained(folder)
    expected = saved(list(CHECKED_TEXTS))["input_ids"]
    if load_saved_tokenizer(folder)(list(CHECKED_TEXTS))["input_ids"] == expected:
        return
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    _write_json(path, settings | {"tokenizer_class": "PreTrainedTokenizerFast"})
    if load_saved_tokenizer(folder)(list(CHECKED_TEXTS))["input_ids"] != expected:
        raise WhichlayersError(
            f"transformers cannot load the saved {type(tokenizer).__name__} with the tokens that the model was "
            "finetuned with; use a model whose tokenizer is saved as tokenizer.json"
        )


def _write_sentence_transformer(
    folder: Path, modules: list[str], width: int, max_length: int, pooling: str = "mean_tokens"
) -> None:
    """The files with which sentence-transformers loads the folder; names as in all of its versions."""
    paths = {"Transformer": "", "Pooling": POOLING, "Dense": DENSE}
    listed = [
        {"idx": i, "name": str(i), "path": paths[name], "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(modules)
    ]
    _write_json(folder / "modules.json", listed)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    (folder / POOLING).mkdir()
    modes = ("cls_token", "max_tokens", "mean_sqrt_len_tokens", "mean_tokens")
    chosen = {f"pooling_mode_{mode}": False for mode in modes} | {f"pooling_mode_{pooling}": True}
    _write_json(folder / POOLING / "config.json", {"word_embedding_dimension": width} | chosen)


def _write_dense(folder: Path, weight: Tensor, bias: Tensor | None, activation: str) -> None:
    from safetensors.torch import save_file

    settings = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": bias is not None,
        "activation_function": activation,
    }
    _write_json(folder / "config.json", settings)
    weights = {"linear.weight": weight.detach().contiguous()}
    if bias is not None:
        weights["linear.bias"] = bias.detach().contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
