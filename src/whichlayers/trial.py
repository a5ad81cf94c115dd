"""The values every room shares: a trial, what is done to its model, how it is trained, and what it is for.

Plain frozen dataclasses with no dependency, so that the engine runs where only torch and transformers are.

Layers are numbered as in the papers: 1 is the layer just above the embeddings, 0 stands for the embeddings.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

Recipe = Literal["as_described", "as_described_v1", "as_released", "bert_init"]
Head = Literal["mean", "pooler"]
Pooling = Literal["mean", "summary"]
Ask = Literal["accuracy", "neurons", "spread", "selectivity", "compression"]
Neurons = Literal["layer", "all", "top", "bottom", "random"]
Ranking = Literal["lca", "probeless"]
SubWord = Literal["last", "first", "mean"]
Norm = Literal["squared", "plain"]


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
    evaluate: Literal["every epoch", "end"] = "every epoch"  # on the dev set

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
class Words:
    """A question that the tagged words of a corpus answer about a model, as it was pretrained or once it is
    finetuned. Its answer is the trial's result:

    accuracy      of a linear classifier of tags, on words it was not trained on
    neurons       how many neurons the smallest set has that is about as accurate as all, as a share of all
    spread        how many of the top neurons lie in `layer`, as a share of those
    selectivity   accuracy less that on a control task
    compression   how many times shorter the tags are by the classifier's online code than by a uniform one
    """

    corpus: str  # its name
    fingerprint: str  # hash of its words and tags
    ask: Ask = "accuracy"
    neurons: Neurons = (
        "all"  # that the classifier reads: all of one layer, or those of a ranking over all layers
    )
    layer: int | None = None  # 0: the embeddings
    share: float | None = None  # of all neurons, for top, bottom and random
    ranking: Ranking = "lca"
    lambdas: tuple[float, float] | None = (0.0, 0.0)  # of L1 and L2; None: found by a grid search
    norm: Norm = "squared"  # of the weights, that L2 stands before: the sum of their squares, or its root
    delta: float = 0.005  # accuracy that the smallest set may lack
    vector: SubWord = "last"  # which of its sub-words stand for a word
    standardise: bool = False  # every neuron to mean 0 and deviation 1 over the training words
    epochs: int = 10
    batch_size: int = 512
    lr: float = 1e-3

    def canonical(self) -> Words:
        """The same question written in one way: only the smallest set asks for delta, a layer for no ranking, and no
        L2 for no norm."""
        plain = Words("", "")
        unbound = self.lambdas is not None and not self.lambdas[1]
        ranked, smallest = self.neurons in ("top", "bottom"), self.ask == "neurons"
        return dataclasses.replace(
            self,
            share=None if self.share is None else float(self.share),
            ranking=self.ranking if ranked else plain.ranking,
            lambdas=None if self.lambdas is None else (float(self.lambdas[0]), float(self.lambdas[1])),
            norm=plain.norm if unbound else self.norm,
            delta=float(self.delta) if smallest else plain.delta,
            lr=float(self.lr),
        )


@dataclass(frozen=True)
class Trial:
    """One finetuning run, one probe, or one question about words.

    Its id is a hash of all that decides its result, and of nothing else.
    """

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
    words: Words | None = (
        None  # asked of the finetuned model; train_size 0: of the model as it was pretrained
    )

    NAMES_ONLY = ("model", "revision", "task", "corpus")  # how a thing is called does not change a result

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
        if self.words is not None:
            canonical = dataclasses.replace(canonical, words=self.words.canonical())
            if not self.train_size:  # nothing is trained but the classifier of tags
                canonical = dataclasses.replace(canonical, training=Training(), head="mean")
        kept = _without_defaults(canonical)
        if "words" in kept:
            kept["words"] = {k: v for k, v in kept["words"].items() if k not in self.NAMES_ONLY}
        return {k: v for k, v in kept.items() if k not in self.NAMES_ONLY}

    @property
    def id(self) -> str:
        return _id_of(self)

    @property
    def finetuning(self) -> Trial | None:
        """The finetuning whose model a question about words is asked of; None: the pretrained model."""
        return dataclasses.replace(self, words=None) if self.train_size else None

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
        words = raw.pop("words", None)
        if words is not None and words["lambdas"] is not None:
            words["lambdas"] = tuple(words["lambdas"])
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
            words=None if words is None else Words(**words),
        )


@dataclass(frozen=True)
class Point:
    """What a trial is for: one point of one experiment. Points may share a trial, which then runs once."""

    experiment: str  # "incremental", "localized", ...
    condition: str  # which curve of the experiment: "", "block reinitialized", ...
    x: float  # where on the curve: layers kept, first layer of the block, number of the permutation, ...
    trial: Trial


@functools.lru_cache(maxsize=1 << 18)  # asked for many times, of studies with many trials
def _id_of(trial: Trial) -> str:
    text = json.dumps(trial.identity(), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


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
