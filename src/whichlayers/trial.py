"""The value types that all packages share: a trial and a point.

`trial_settings.py` has the settings that a trial consists of, `trial_json.py` its id and its JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

from whichlayers.errors import WhichlayersError
from whichlayers.trial_json import (
    LATER_FIELDS,
    fields_from_json,
    hash_identity,
    identity_of,
    trial_to_json,
)
from whichlayers.trial_settings import (
    COMPONENTS,
    Adapter,
    AdapterMethod,
    Component,
    Head,
    Measure,
    Neurons,
    Norm,
    Parameters,
    Pooling,
    Precision,
    Probe,
    Ranking,
    Recipe,
    Subword,
    Surgery,
    Training,
    WordProbe,
)

__all__ = [
    "ALL_PRETRAINED",
    "BASELINES",
    "COMPONENTS",
    "LATER_FIELDS",
    "NONE_PRETRAINED",
    "PRETRAINED",
    "Adapter",
    "AdapterMethod",
    "Component",
    "Head",
    "Measure",
    "Neurons",
    "Norm",
    "Parameters",
    "Point",
    "Pooling",
    "Precision",
    "Probe",
    "Ranking",
    "Recipe",
    "Subword",
    "Surgery",
    "Training",
    "Trial",
    "TrialKind",
    "WordProbe",
    "get_probe",
    "get_word_probe",
]

TrialKind = Literal["finetune", "probe", "word_probe"]


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

    def canonical(self) -> Trial:
        """The same trial in its normal form: settings that have no effect on its result are reset."""
        is_finetuned = self.probe is None and (self.word_probe is None or self.train_size > 0)
        return dataclasses.replace(
            self,
            head=self.head if is_finetuned else "mean",
            surgery=self.surgery.canonical(),
            training=self._used_training(),
            probe=self.probe and self.probe.canonical(),
            word_probe=self.word_probe and self.word_probe.canonical(),
            seeds=self.used_seeds(),
            adapter=self.adapter and self.adapter.canonical(),
        )

    def _used_training(self) -> Training:
        """`training` in its normal form."""
        if self.word_probe is not None and not self.train_size:
            return Training()  # the pretrained model: nothing is finetuned
        if self.probe is not None:  # it has its own hyperparameters
            return Training(max_length=self.training.max_length)
        training = self.training.canonical()
        has_frozen_dropout = (training.frozen_layers or self.adapter is not None) and training.dropout != 0
        return training if has_frozen_dropout else dataclasses.replace(training, frozen_dropout=True)

    def identity(self) -> dict[str, Any]:
        """All fields that determine the result, by their stored names, without those that have their default."""
        return identity_of(self.canonical())

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
        """The trial as it is stored in results.db."""
        return trial_to_json(self)

    @staticmethod
    def from_json(text: str) -> Trial:
        """The trial that `to_json` has written, in this or an earlier version."""
        return Trial(**fields_from_json(text))


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
    return hash_identity(trial.identity())
