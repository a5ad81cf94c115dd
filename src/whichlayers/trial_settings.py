"""The settings of a trial: its surgery, its training, its adapters, its probe.

Frozen dataclasses without dependencies, so that the engine imports with torch and transformers alone.
Layers are numbered as in the papers: layer 1 is the first above the embeddings, layer 0 is the embeddings.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

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
AdapterMethod = Literal["lora", "ia3"]
Parameters = Literal["all", "norms", "biases"]
Precision = Literal["auto", "float32", "bfloat16"]
Component = Literal["subset", "order", "init", "head", "dropout"]
COMPONENTS: tuple[Component, ...] = get_args(Component)  # what the seeds of a trial determine


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
