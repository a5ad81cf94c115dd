"""The values every room shares: a trial, what is done to its model, how it is trained, and what it is for.

Plain frozen dataclasses with no dependency, so that the engine runs where only torch and transformers are.

Layers are numbered as in the papers: 1 is the layer just above the embeddings, 0 stands for the embeddings.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

Recipe = Literal["as_described", "as_described_v1", "as_released", "bert_init"]
Head = Literal["mean", "pooler"]
Pooling = Literal["mean", "summary"]


class CarryoverError(Exception):
    """Something the user can put right; the message says what was wrong, what is allowed and what to do."""


@dataclass(frozen=True)
class Surgery:
    """What is done to the pretrained layers before training.

    `order` lists the pretrained layers in the order in which they shall stand: (3, 1, 2) permutes a model of
    three layers, (1, 2) drops its top layer. None leaves them as they are.
    `reinit` names positions in the resulting model whose parameters are drawn anew by `recipe`.
    """

    order: tuple[int, ...] | None = None
    reinit: tuple[int, ...] = ()
    recipe: Recipe = "as_described"
    keep_layer_norm: bool = False

    def canonical(self) -> Surgery:
        """The same surgery written in one way: a recipe that draws nothing does not tell two trials apart."""
        if not self.reinit:
            return Surgery(order=self.order)
        return dataclasses.replace(self, reinit=tuple(sorted(set(self.reinit))))


@dataclass(frozen=True)
class Training:
    """How a trial is finetuned. The defaults: Tamkin et al. 2020 with the released code's AdamW."""

    epochs: int = 3
    batch_size: int = 8
    lr: float = 2e-5
    lr_factors: tuple[tuple[int, float], ...] = ()  # (layer, factor) for layers that differ; factor 0 freezes
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_norm: float = 1.0  # global norm of one trial's gradient; 0 turns clipping off
    warmup: float = 0.0  # share of the steps
    schedule: Literal["linear", "constant"] = "linear"
    max_length: int = 128
    dropout: float | None = None  # None: what the model's own config says

    def canonical(self) -> Training:
        """The same training written in one way: 5 is 5.0, factors in order, a factor of 1 left out."""
        first, second = self.betas
        return dataclasses.replace(
            self,
            lr=float(self.lr),
            lr_factors=tuple(sorted((int(n), float(f)) for n, f in self.lr_factors if f != 1)),
            weight_decay=float(self.weight_decay),
            betas=(float(first), float(second)),
            eps=float(self.eps),
            clip_norm=float(self.clip_norm),
            warmup=float(self.warmup),
            dropout=None if self.dropout is None else float(self.dropout),
        )


@dataclass(frozen=True)
class Probe:
    """A linear classifier on the states of one layer of the frozen model, in place of finetuning.

    A share of the training subset is held out to stop by: the epoch with the lowest loss there is kept, and
    training ends after `patience` epochs without a lower one. Nothing held out: the last epoch is kept.
    """

    layer: int  # 0: the embeddings
    pooling: Pooling = "mean"  # over the real tokens; "summary": the token that stands for the sequence
    max_epochs: int = 40
    patience: int = 5
    held_out: float = 0.1
    batch_size: int = 8
    lr: float = 1e-3
    weight_decay: float = 0.0
    standardise: bool = False  # each feature to mean 0 and sd 1 on the part that is trained on

    def canonical(self) -> Probe:
        """The same probe written in one way: without a held-out part there is nothing to be patient for."""
        patience = self.patience if self.held_out else Probe(self.layer).patience
        return dataclasses.replace(
            self,
            patience=patience,
            held_out=float(self.held_out),
            lr=float(self.lr),
            weight_decay=float(self.weight_decay),
        )


@dataclass(frozen=True)
class Trial:
    """One finetuning run, or one probe. Its id is a hash of all that decides its result, and of nothing else."""

    model: str  # as the user named it: a hub id, a folder, package:NAME
    model_fingerprint: str  # hash of the model's files
    task: str
    task_fingerprint: str  # hash of the examples, the labels and the metric
    train_size: int  # how many training examples its random subset has
    seed: int  # decides subset, order, re-initialisation, head and dropout
    revision: str | None = None
    head: Head = "mean"
    surgery: Surgery = field(default_factory=Surgery)
    training: Training = field(default_factory=Training)
    probe: Probe | None = None  # None: the model is finetuned

    NAMES_ONLY = ("model", "revision", "task")  # how a thing is called does not change a result

    def identity(self) -> dict[str, Any]:
        """All that decides the result. Values equal to their default are left out, so that a setting added in
        a later version keeps the ids of trials that never used it."""
        canonical = dataclasses.replace(
            self, surgery=self.surgery.canonical(), training=self.training.canonical()
        )
        if self.probe is not None:  # it has its own training; of the model's, only the length of texts counts
            training = Training(max_length=self.training.max_length)
            canonical = dataclasses.replace(
                canonical, probe=self.probe.canonical(), training=training, head="mean"
            )
        return {k: v for k, v in _without_defaults(canonical).items() if k not in self.NAMES_ONLY}

    @property
    def id(self) -> str:
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.train_size / self.training.batch_size)

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.training.epochs

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Trial:
        raw = json.loads(text)
        surgery, training, probe = raw.pop("surgery"), raw.pop("training"), raw.pop("probe", None)
        if surgery["order"] is not None:
            surgery["order"] = tuple(surgery["order"])
        surgery["reinit"] = tuple(surgery["reinit"])
        training["lr_factors"] = tuple((int(layer), float(f)) for layer, f in training["lr_factors"])
        training["betas"] = tuple(training["betas"])
        return Trial(
            **raw,
            surgery=Surgery(**surgery),
            training=Training(**training),
            probe=None if probe is None else Probe(**probe),
        )


@dataclass(frozen=True)
class Point:
    """What a trial is for: one point of one experiment. Points may share a trial, which then runs once."""

    experiment: str  # "incremental", "localized", ...
    condition: str  # which curve of the experiment: "", "block reinitialized", ...
    x: float  # where on the curve: layers kept, first layer of the block, number of the permutation, ...
    trial: Trial


def _without_defaults(value: Any) -> dict[str, Any]:
    kept = {}
    for f in dataclasses.fields(value):
        v = getattr(value, f.name)
        default = f.default if f.default is not dataclasses.MISSING else None
        if f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        elif f.default is dataclasses.MISSING:
            default = dataclasses.MISSING
        if v == default:
            continue
        kept[f.name] = _without_defaults(v) if dataclasses.is_dataclass(v) else v
    return kept
