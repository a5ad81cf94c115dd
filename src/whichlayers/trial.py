"""The value types that all packages share: a trial, its surgery, its training, its probes.

Frozen dataclasses without dependencies, so that the engine imports with torch and transformers alone.
Layers are numbered as in the papers: layer 1 is the first above the embeddings, layer 0 is the embeddings.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from whichlayers.errors import WhichlayersError

Recipe = Literal[
    "as_described",
    "as_described_v1",
    "as_released",
    "weights_only",
    "bert_init",
    "model_init",
    "shuffled",
    "mean_var",
]
Head = Literal["mean", "pooler", "last"]
Pooling = Literal["mean", "summary", "pooler"]
Measure = Literal["accuracy", "neurons", "spread", "selectivity", "compression"]
Neurons = Literal["layer", "all", "top", "bottom", "random"]
Ranking = Literal["lca", "probeless"]
Subword = Literal["last", "first", "mean"]
Norm = Literal["squared", "plain"]
TrialKind = Literal["finetune", "probe", "word_probe"]
AdapterMethod = Literal["lora", "ia3"]
Parameters = Literal["all", "norms", "biases"]
Precision = Literal["auto", "float32", "bfloat16"]
Component = Literal["subset", "order", "init", "head", "dropout"]
COMPONENTS: tuple[Component, ...] = get_args(Component)  # what the seeds of a trial determine

# Field names as they are hashed into trial ids and stored in results.db. A field may be renamed here. Its stored name
# and its default, which ids leave out, never change: ids and finished trials of existing studies would be lost.
STORED_NAMES = {"word_probe": "words", "measure": "ask", "standardize": "standardise"}
FIELD_NAMES = {stored: name for name, stored in STORED_NAMES.items()}
# Fields that were added after version 0.1, by the field of the trial that holds them. They are stored only if they
# differ from their default: the JSON of a trial is the same as before.
LATER_FIELDS = {
    "surgery": ("reinit_pooler",),
    "training": ("parameters", "frozen_dropout", "bias_correction", "precision"),
}


@dataclass(frozen=True)
class Surgery:
    """Changes to the pretrained layers before training.

    Args:
        order: Pretrained layers in their new order: (3, 1, 2) permutes a model of three layers, (1, 2) drops its
            top layer. None keeps all layers as they are.
        reinit: Positions in the resulting model whose parameters are re-initialized by `recipe`.
        recipe: How parameters are re-initialized.
        keep_layer_norm: Whether re-initialized layers keep the pretrained layer norms.
        reinit_pooler: Whether the pooler is re-initialized by `recipe`, too.
    """

    order: tuple[int, ...] | None = None
    reinit: tuple[int, ...] = ()
    recipe: Recipe = "as_described"
    keep_layer_norm: bool = False
    reinit_pooler: bool = False

    def canonical(self) -> Surgery:
        """The same surgery in its normal form: without re-initialized layers, recipe and layer norms are unused."""
        if not self.reinit:  # the pooler has no layer norm
            recipe = self.recipe if self.reinit_pooler else Surgery.recipe
            return Surgery(order=self.order, recipe=recipe, reinit_pooler=self.reinit_pooler)
        return dataclasses.replace(self, reinit=tuple(sorted(set(self.reinit))))


@dataclass(frozen=True)
class Training:
    """Finetuning hyperparameters. The defaults follow Tamkin et al. 2020, with AdamW as in the released code."""

    epochs: int = 3
    batch_size: int = 8
    lr: float = 2e-5
    lr_factors: tuple[tuple[int, float], ...] = ()  # (layer, multiple of lr); a factor of 0 freezes the layer
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_norm: float = 1.0  # maximum global gradient norm of a trial; 0 disables clipping
    warmup: float = 0.0  # fraction of the steps
    schedule: Literal["linear", "constant"] = "linear"
    max_length: int = 128
    dropout: float | None = None  # None: the value in the model's config
    evaluate: Literal["every epoch", "end"] = "every epoch"  # on the dev set
    parameters: Parameters = "all"  # which parameters of the layers and the embeddings are trained
    frozen_dropout: bool = True  # whether dropout is applied in layers without trained parameters
    bias_correction: bool = True  # of Adam's moments
    precision: Precision = "auto"  # of matrix products; "auto": bfloat16 on GPUs, float32 on CPUs

    @property
    def frozen_layers(self) -> tuple[int, ...]:
        """The layers with a learning rate factor of 0, in order; 0 is the embeddings."""
        return tuple(sorted(int(layer) for layer, factor in self.lr_factors if factor == 0))

    def canonical(self) -> Training:
        """The same training in its normal form: floats as floats, factors sorted, factors of 1 removed."""
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
class Adapter:
    """Small trained modules in some layers of the frozen model. Only they and the head are trained.

    Args:
        method: lora: low-rank changes of weights (Hu et al. 2022); ia3: a factor for each output (Liu et al. 2022).
        layers: Layers that have adapters, numbered from 1.
        targets: Names of the linear modules within a layer that have adapters, such as "attention.self.query".
        rank: Rank of the change of a weight (lora).
        alpha: The change is multiplied by alpha / rank (lora).
        dropout: Probability of dropping an input of the adapter (lora).
    """

    method: AdapterMethod
    layers: tuple[int, ...]
    targets: tuple[str, ...]
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0

    def canonical(self) -> Adapter:
        """The same adapter in its normal form: sorted; `rank`, `alpha` and `dropout` are unused by ia3."""
        layers, targets = tuple(sorted(set(self.layers))), tuple(sorted(set(self.targets)))
        if self.method == "ia3":
            return Adapter(self.method, layers, targets)
        return Adapter(self.method, layers, targets, self.rank, float(self.alpha), float(self.dropout))


@dataclass(frozen=True)
class Probe:
    """A linear probe on the pooled hidden states of one layer of the frozen model.

    A fraction `held_out` of the training subset is used for early stopping: the epoch with the lowest held-out
    loss is kept, and training stops after `patience` epochs without improvement. With `held_out=0` the last epoch
    is kept.
    """

    layer: int  # 0: the embeddings
    # mean over the non-padding tokens; "summary": the [CLS]-like token; "pooler": the model's pretrained pooler
    pooling: Pooling = "mean"
    max_epochs: int = 40
    patience: int = 5
    held_out: float = 0.1
    batch_size: int = 8
    lr: float = 1e-3
    weight_decay: float = 0.0
    standardize: bool = False  # scale each feature to mean 0, sd 1 on the training examples

    def canonical(self) -> Probe:
        """The same probe in its normal form: without held-out examples, `patience` is unused."""
        patience = self.patience if self.held_out else Probe(self.layer).patience
        return dataclasses.replace(
            self,
            patience=patience,
            held_out=float(self.held_out),
            lr=float(self.lr),
            weight_decay=float(self.weight_decay),
        )


@dataclass(frozen=True)
class WordProbe:
    """A linear probe that predicts the tags of words in a corpus from hidden states, before or after finetuning.

    `measure` is what the trial reports:
        accuracy: Accuracy on test words.
        neurons: Size of the smallest neuron set about as accurate as all neurons, as a fraction of all neurons.
        spread: Fraction of the top neurons that lie in `layer`.
        selectivity: Accuracy minus the accuracy on a control task (Hewitt & Liang 2019).
        compression: Uniform code length divided by the probe's online code length (Voita & Titov 2020).
    """

    corpus: str  # name of the corpus
    fingerprint: str  # hash of its words and tags
    measure: Measure = "accuracy"
    neurons: Neurons = "all"  # input of the probe: one layer, or a subset of the neurons of all layers
    layer: int | None = None  # 0: the embeddings
    share: float | None = None  # fraction of all neurons, for top, bottom and random
    ranking: Ranking = "lca"
    lambdas: tuple[float, float] | None = (0.0, 0.0)  # weights of L1 and L2; None: grid search
    norm: Norm = "squared"  # L2 penalty: sum of squared weights, or its square root
    delta: float = 0.005  # accuracy that the smallest set may lose
    vector: Subword = "last"  # which of a word's subwords represent it
    standardize: bool = False  # scale each neuron to mean 0, sd 1 on the training words
    epochs: int = 10
    batch_size: int = 512
    lr: float = 1e-3

    def canonical(self) -> WordProbe:
        """The same probe in its normal form: `delta`, `ranking` and `norm` are reset where they are unused."""
        default = WordProbe("", "")
        no_l2 = self.lambdas is not None and not self.lambdas[1]
        ranked, smallest = self.neurons in ("top", "bottom"), self.measure == "neurons"
        return dataclasses.replace(
            self,
            share=None if self.share is None else float(self.share),
            ranking=self.ranking if ranked else default.ranking,
            lambdas=None if self.lambdas is None else (float(self.lambdas[0]), float(self.lambdas[1])),
            norm=default.norm if no_l2 else self.norm,
            delta=float(self.delta) if smallest else default.delta,
            lr=float(self.lr),
        )


@dataclass(frozen=True)
class Trial:
    """One finetuning run, one sentence-level probe or one word-level probe.

    `id` is a hash of everything that determines the result, and of nothing else.
    """

    model: str  # as the user named it: a hub id, a folder, package:NAME
    model_fingerprint: str  # hash of the model's files
    task: str
    task_fingerprint: str  # hash of the examples, the labels and the metric
    train_size: int  # number of training examples in the random subset
    seed: int  # determines subset, order, re-initialization, head and dropout, and the word probe
    revision: str | None = None
    head: Head = "mean"
    surgery: Surgery = field(default_factory=Surgery)
    training: Training = field(default_factory=Training)
    probe: Probe | None = None  # None: the model is finetuned
    word_probe: WordProbe | None = None  # on the finetuned model; with train_size 0, on the pretrained one
    # seeds of components that have their own, in place of `seed`
    seeds: tuple[tuple[Component, int], ...] = ()
    adapter: Adapter | None = None  # None: all parameters are trained that `training` does not freeze
    # decoders on sentence pairs: the prompt, with {first} and {second}; "": the pair as the tokenizer joins it
    pair_template: str = ""
    bos: bool | None = None  # whether texts start with the BOS token; None: if the tokenizer adds it

    NAMES_ONLY = ("model", "revision", "task", "corpus")  # names do not change a result

    def identity(self) -> dict[str, Any]:
        """All fields that determine the result, by their stored names.

        Values equal to their default are left out, so that a setting added in a later version does not change
        the ids of existing trials.
        """
        training = self.training.canonical()
        frozen = training.frozen_layers or self.adapter is not None
        if not frozen or training.dropout == 0:
            training = dataclasses.replace(training, frozen_dropout=True)  # it has no effect
        canonical = dataclasses.replace(
            self, surgery=self.surgery.canonical(), training=training, seeds=self.used_seeds()
        )
        if self.adapter is not None:
            canonical = dataclasses.replace(canonical, adapter=self.adapter.canonical())
        if self.probe is not None:  # a probe has its own hyperparameters; only max_length is the model's
            training = Training(max_length=self.training.max_length)
            canonical = dataclasses.replace(
                canonical, probe=self.probe.canonical(), training=training, head="mean"
            )
        if self.word_probe is not None:
            canonical = dataclasses.replace(canonical, word_probe=self.word_probe.canonical())
            if not self.train_size:  # the pretrained model: nothing is finetuned
                canonical = dataclasses.replace(canonical, training=Training(), head="mean")
        return _without_names(_renamed(_non_defaults(canonical), STORED_NAMES), self.NAMES_ONLY)

    @property
    def id(self) -> str:
        return _id_of(self)

    @property
    def input_fingerprint(self) -> str:
        """Identifies the model and how texts become its input."""
        if not self.pair_template and self.bos is None:
            return self.model_fingerprint
        text = json.dumps([self.model_fingerprint, self.pair_template, self.bos])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def kind(self) -> TrialKind:
        """What the trial runs: it finetunes a model, or it trains a sentence-level or a word-level probe."""
        if self.word_probe is not None:
            return "word_probe"
        return "finetune" if self.probe is None else "probe"

    @property
    def finetuning(self) -> Trial | None:
        """The finetuning trial whose model a word probe reads; None for the pretrained model."""
        return dataclasses.replace(self, word_probe=None) if self.train_size else None

    def seed_of(self, component: Component) -> int:
        """The seed that determines a component of the trial."""
        return dict(self.seeds).get(component, self.seed)

    def used_seeds(self) -> tuple[tuple[Component, int], ...]:
        """`seeds` in its normal form: sorted, without those equal to `seed` and those that have no effect."""
        unused = set[Component]()
        if not (self.surgery.reinit or self.surgery.reinit_pooler or self.adapter):
            unused.add("init")
        if self.training.dropout == 0 and not (self.adapter and self.adapter.dropout):
            unused.add("dropout")
        if self.probe is not None:
            unused |= {"init", "dropout"}
        if not self.train_size:
            unused |= set(COMPONENTS)
        return tuple(sorted((c, s) for c, s in self.seeds if s != self.seed and c not in unused))

    @property
    def trained_part(self) -> Hashable:
        """What of the model is trained; trials of a stack agree in it, and it determines their memory and time."""
        training = self.training
        adapter = self.adapter and self.adapter.canonical()
        return training.frozen_layers, training.parameters, training.frozen_dropout, adapter

    @property
    def trains_all_parameters(self) -> bool:
        """Whether nothing is frozen and there are no adapters."""
        training = self.training
        return not training.frozen_layers and training.parameters == "all" and self.adapter is None

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.train_size / self.training.batch_size)

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.training.epochs

    def to_json(self) -> str:
        fields = dataclasses.asdict(self)
        # as trials were stored before they had these fields
        for name in ("seeds", "adapter", "pair_template", "bos"):
            if fields[name] in ((), "", None):
                del fields[name]
        for section, names in LATER_FIELDS.items():
            settings = getattr(self, section)
            for name in names:
                if getattr(settings, name) == getattr(type(settings), name):
                    del fields[section][name]
        return json.dumps(_renamed(fields, STORED_NAMES), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Trial:
        raw = _renamed(json.loads(text), FIELD_NAMES)
        surgery, training = raw.pop("surgery"), raw.pop("training")
        probe, word_probe = raw.pop("probe", None), raw.pop("word_probe", None)
        if word_probe is not None and word_probe["lambdas"] is not None:
            word_probe["lambdas"] = tuple(word_probe["lambdas"])
        if surgery["order"] is not None:
            surgery["order"] = tuple(surgery["order"])
        surgery["reinit"] = tuple(surgery["reinit"])
        training["lr_factors"] = tuple((int(layer), float(f)) for layer, f in training["lr_factors"])
        training["betas"] = tuple(training["betas"])
        adapter = raw.pop("adapter", None)
        if adapter is not None:
            adapter |= {"layers": tuple(adapter["layers"]), "targets": tuple(adapter["targets"])}
        seeds = tuple((component, seed) for component, seed in raw.pop("seeds", ()))
        return Trial(
            **raw,
            surgery=Surgery(**surgery),
            training=Training(**training),
            probe=None if probe is None else Probe(**probe),
            word_probe=None if word_probe is None else WordProbe(**word_probe),
            seeds=seeds,
            adapter=None if adapter is None else Adapter(**adapter),
        )


def get_probe(trial: Trial) -> Probe:
    """The sentence-level probe of a trial; raises WhichlayersError if it has none."""
    if trial.probe is None:
        raise WhichlayersError(f"trial {trial.id} is not a probe: it has to be finetuned")
    return trial.probe


def get_word_probe(trial: Trial) -> WordProbe:
    """The word-level probe of a trial; raises WhichlayersError if it has none."""
    if trial.word_probe is None:
        raise WhichlayersError(f"trial {trial.id} is not a word probe")
    return trial.word_probe


# Conditions of points that several packages refer to
ALL_PRETRAINED, NONE_PRETRAINED = "all pretrained", "none pretrained"
BASELINES = (ALL_PRETRAINED, NONE_PRETRAINED)
PRETRAINED = "pretrained"  # word-level experiments: the model without finetuning


@dataclass(frozen=True)
class Point:
    """One point of an experiment's curve and the trial that measures it.

    Several points may share a trial, which then runs once.
    """

    experiment: str  # "incremental", "localized", ...
    condition: str  # which curve of the experiment: "", "block reinitialized", ...
    x: float  # position on the curve: layers kept, first layer of the block, index of the permutation, ...
    trial: Trial


@functools.lru_cache(maxsize=1 << 18)  # large studies compute the same ids many times
def _id_of(trial: Trial) -> str:
    text = json.dumps(trial.identity(), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _renamed(fields: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The nested dictionary with its keys mapped by `names`."""
    return {
        names.get(key, key): _renamed(value, names) if isinstance(value, dict) else value
        for key, value in fields.items()
    }


def _without_names(fields: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The nested dictionary without the keys in `names`."""
    return {
        key: _without_names(value, names) if isinstance(value, dict) else value
        for key, value in fields.items()
        if key not in names
    }


def _non_defaults(instance: Any) -> dict[str, Any]:
    """Fields of a dataclass instance that differ from their default, as a nested dictionary."""
    kept = {}
    for f in dataclasses.fields(instance):
        value = getattr(instance, f.name)
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        if value != default:
            kept[f.name] = _non_defaults(value) if dataclasses.is_dataclass(value) else value
    return kept
