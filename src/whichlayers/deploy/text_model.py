"""A saved model with its tokenizer and labels: `load_model`, and predictions for texts.

model = load_model("my-model")
model.predict(["a fine film"])[0].label
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whichlayers.data.prompts import encode_prompts
from whichlayers.errors import WhichlayersError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerFast

METADATA_FILE = "whichlayers.json"
DENSE = "2_Dense"
FORMAT = 1
BATCH_SIZE = 32


@dataclass(frozen=True)
class Metadata:
    """What whichlayers.json says about a saved model."""

    layout: str  # "sequence_classification", "sentence_transformers" or "features"
    head: str
    kind: str  # "classification" or "regression"
    labels: tuple[str, ...]  # names of the classes; () for regression
    max_length: int
    pairs: bool  # whether it takes two texts
    task: str
    base_model: str
    layers: tuple[int, ...]  # the layers of the base model that it has, in order
    depth: int  # of the base model
    version: str  # of whichlayers
    format: int = FORMAT
    details: dict[str, Any] = field(default_factory=dict)  # trial, scores


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text."""

    label: str | float  # name of the class, or the number of a regression
    probability: float | None  # of that class; None for regression
    probabilities: dict[str, float]  # by class; empty for regression


class TextModel:
    """A finetuned model that takes texts.

    Attributes:
        module: A torch module that maps input_ids, attention_mask and possibly token_type_ids (B, L) to logits (B, C).
        tokenizer: Its tokenizer.
        metadata: Labels, maximum length and origin.
    """

    def __init__(self, module: nn.Module, tokenizer: PreTrainedTokenizerFast, metadata: Metadata):
        self.module, self.tokenizer, self.metadata = module.eval(), tokenizer, metadata

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits; empty for regression."""
        return self.metadata.labels

    def to(self, device: str) -> TextModel:
        """Move the model to a device; returns itself."""
        from whichlayers.engine.devices import resolve_device

        self.module.to(resolve_device(device))
        return self

    def tokenize(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> list[dict[str, list[int]]]:
        """Tokens of each text, or of each pair of texts, as in training."""
        if (pairs is not None) != self.metadata.pairs:
            takes = "two texts: give pairs" if self.metadata.pairs else "one text: leave out pairs"
            raise WhichlayersError(f"this model was finetuned on {self.metadata.task} and takes {takes}")
        _check_texts("texts", texts)
        if pairs is not None:
            _check_texts("pairs", pairs)
            if len(pairs) != len(texts):
                raise WhichlayersError(
                    f"{len(texts):,} texts and {len(pairs):,} pairs: give one second text for each text"
                )
        if not len(texts):  # a tokenizer takes no empty list
            return []
        template = self.metadata.details.get("trial", {}).get("pair_template")
        if template and pairs is not None:  # a decoder
            filled = zip(texts, pairs, strict=True)
            rows, _ = encode_prompts(template, filled, self.tokenizer, self.metadata.max_length)
            return [{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows]
        batch = self.tokenizer(
            list(texts),
            None if pairs is None else list(pairs),
            truncation="longest_first",
            max_length=self.metadata.max_length,
            padding=False,
        )
        return [{key: batch[key][i] for key in batch} for i in range(len(texts))]

    def logits(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, batch_size: int = BATCH_SIZE
    ) -> np.ndarray:
        """(n, C) float32 logits; for regression (n, 1) predictions."""
        import torch

        rows = self.tokenize(texts, pairs)
        outputs = len(self.labels) or 1
        result = np.empty((len(rows), outputs), np.float32)
        by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
        device = next(self.module.parameters()).device
        with torch.inference_mode():
            for start in range(0, len(rows), batch_size):
                chosen = by_length[start : start + batch_size]
                inputs = {
                    k: v.to(device) for k, v in _padded([rows[i] for i in chosen], self._pad_id).items()
                }
                result[chosen] = self.module(**inputs).float().cpu().numpy()
        return result

    def predict_proba(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, batch_size: int = BATCH_SIZE
    ) -> np.ndarray:
        """(n, C) probabilities of the classes, in the order of `labels`."""
        if not self.labels:
            raise WhichlayersError("a regression model has no probabilities: use predict")
        logits = self.logits(texts, pairs, batch_size).astype(np.float64)
        exponentials = np.exp(logits - logits.max(1, keepdims=True))
        return exponentials / exponentials.sum(1, keepdims=True)

    def predict(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, batch_size: int = BATCH_SIZE
    ) -> list[Prediction]:
        """One prediction per text."""
        if not self.labels:
            return [Prediction(float(v), None, {}) for v in self.logits(texts, pairs, batch_size)[:, 0]]
        found = []
        for row in self.predict_proba(texts, pairs, batch_size):
            best = int(row.argmax())
            by_label = dict(zip(self.labels, row.tolist(), strict=True))
            found.append(Prediction(self.labels[best], float(row[best]), by_label))
        return found

    @property
    def _pad_id(self) -> int:
        return self.tokenizer.pad_token_id or 0  # masked, so any id works


def load_model(folder: str | Path, device: str = "cpu") -> TextModel:
    """Load a model that `whichlayers build` saved.

    Args:
        folder: The folder.
        device: "cpu", "cuda" or "cuda:N".

    Returns:
        The model in eval mode and float32.
    """
    folder = Path(folder)
    metadata = read_metadata(folder)
    if metadata.layout == "features":
        raise WhichlayersError(
            f"{folder} holds a frozen encoder without a head, which predicts nothing: load it with "
            "sentence_transformers.SentenceTransformer or transformers.AutoModel"
        )
    from whichlayers.models.tokenizers import load_saved_tokenizer

    module = (
        _load_sequence_classifier if metadata.layout == "sequence_classification" else _load_mean_classifier
    )
    return TextModel(module(folder, metadata), load_saved_tokenizer(folder), metadata).to(device)


def read_metadata(folder: Path) -> Metadata:
    """The metadata of a saved model; WhichlayersError if the folder holds none."""
    path, expected = folder / METADATA_FILE, "give a folder that `whichlayers build` wrote"
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise WhichlayersError(f"model {folder}: the path {problem}; {expected}")
    if not path.is_file():
        several = sorted(p.parent.name for p in folder.glob(f"*/{METADATA_FILE}"))
        hint = f" It holds several models: give one of {', '.join(several)}." if several else ""
        raise WhichlayersError(f"{folder} has no {METADATA_FILE}: {expected}.{hint}")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.get("format") != FORMAT:
            raise WhichlayersError(f"{path} has format {stored.get('format')}, this version reads {FORMAT}")
        return Metadata(**stored | {"labels": tuple(stored["labels"]), "layers": tuple(stored["layers"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WhichlayersError(f"{path} cannot be read: {error}; build the model again") from error


def _load_sequence_classifier(folder: Path, metadata: Metadata) -> nn.Module:
    from whichlayers.models.load import load_saved
    from whichlayers.models.sequence_classification import LogitsOnly

    return LogitsOnly(load_saved(folder, with_head=True))


def _load_mean_classifier(folder: Path, metadata: Metadata) -> nn.Module:
    from safetensors.torch import load_file

    from whichlayers.models.head import Classifier
    from whichlayers.models.load import load_saved

    classifier = Classifier(load_saved(folder), "mean", len(metadata.labels) or 1)
    weights = load_file(folder / DENSE / "model.safetensors")
    classifier.classifier.load_state_dict({k.removeprefix("linear."): v for k, v in weights.items()})
    return classifier


def _padded(rows: Sequence[dict[str, list[int]]], pad_id: int) -> dict[str, Tensor]:
    """Rows padded on the right: each key as (B, L)."""
    import torch

    longest = max(len(row["input_ids"]) for row in rows)
    padding = {"input_ids": pad_id}
    return {
        key: torch.tensor([row[key] + [padding.get(key, 0)] * (longest - len(row[key])) for row in rows])
        for key in rows[0]
    }


def _check_texts(name: str, texts: Sequence[str]) -> None:
    """Raise WhichlayersError unless `texts` holds texts; a single text would be read as a list of characters."""
    if isinstance(texts, str):
        shown = texts if len(texts) <= 40 else f"{texts[:40]}..."
        raise WhichlayersError(f"{name} = {shown!r}: give a list of texts, such as [{shown!r}]")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise WhichlayersError(f"{name}: item {i} is {text!r}, not a text")


def default_device() -> str:
    """ "cuda" if there is a GPU, else "cpu" """
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
