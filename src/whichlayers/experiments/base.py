"""Base classes of the experiments: shared keys and the model variants that an experiment trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, field_validator, model_validator

from whichlayers.config.errors import raise_problems
from whichlayers.config.sections import (
    Count,
    CountPerSize,
    Number,
    PerSize,
    Section,
    Sizes,
    Text,
    TrainingSpec,
)
from whichlayers.config.validators import as_tuple, at_least_one, none_or_some
from whichlayers.experiments.display import Display
from whichlayers.text import join_list
from whichlayers.trial import ALL_PRETRAINED, NONE_PRETRAINED, Adapter, Parameters, Probe, Recipe

SHARED_KEYS = (
    "tasks",
    "train_sizes",
    "trials",
    "epochs",
    "lr",
    "training",
    "recipe",
    "keep_layer_norm",
    "reinit_pooler",
    "reinit_lr_factor",
)

Names = Annotated[
    Literal["all"] | tuple[Text, ...], BeforeValidator(lambda v: v if v == "all" else as_tuple(v))
]
Recipes = Annotated[tuple[Recipe, ...], BeforeValidator(at_least_one)]
Flags = Annotated[tuple[Annotated[bool, Field(strict=True)], ...], BeforeValidator(at_least_one)]
Factors = Annotated[tuple[Annotated[Number, Field(ge=0)], ...], BeforeValidator(at_least_one)]
PeftLr = Annotated[tuple[Annotated[Number, Field(gt=0)], ...] | None, BeforeValidator(none_or_some)]
CountList = Annotated[tuple[Count, ...], BeforeValidator(as_tuple)]


@dataclass(frozen=True)
class Variant:
    """One model variant: a point of an experiment, before task, training size and seed are chosen.

    Args:
        condition: Which curve of the experiment the point is on, without `settings` and `lr`.
        x: Position on the curve.
        order: Pretrained layers in their new order; None keeps all layers as they are.
        reinit: Positions whose layers are re-initialized.
        is_baseline: Whether other variants are compared with this one.
        probe: Linear probe to train in place of finetuning.
        lr_factors: (layer, multiple of lr); a factor of 0 freezes the layer, 0 is the embeddings.
        parameters: Which parameters of the layers and the embeddings are trained.
        adapter: Adapters to train, with the targets of the study file, in place of the model's parameters.
        experiment: Name under which the point is stored; the kind of the experiment by default.
        lr: Learning rate, in place of the experiment's; the point's condition names it (see `whichlayers.conditions`).
        settings: Settings with their names in a condition, such as ("rank", "rank 8"). The point's condition names
            those that tell it apart from others of the study (see `whichlayers.study.name_conditions`).
    """

    condition: str
    x: float
    order: tuple[int, ...] | None = None
    reinit: tuple[int, ...] = ()
    is_baseline: bool = False
    probe: Probe | None = None
    lr_factors: tuple[tuple[int, float], ...] = ()
    parameters: Parameters = "all"
    adapter: Adapter | None = None
    experiment: str | None = None
    lr: float | None = None
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class DepthError:
    """A setting that is invalid for the depth of a model.

    Args:
        key: Key of the setting in the experiment.
        value: The invalid value.
        allowed: Which values are allowed, for the error message.
    """

    key: str
    value: object
    allowed: str


class Experiment(Section):
    """Base class of all experiments. A subclass is one kind of experiment; its fields are its keys."""

    kind: str
    displays: ClassVar[tuple[Display, ...]]  # one for each name under which its points are stored

    train_sizes: Sizes | None = Field(
        default=None,
        description="Training sizes of this experiment, in place of those of the study and its tasks.",
        examples=[[500]],
    )
    trials: CountPerSize | None = Field(
        default=None, description="Trials per point, in place of the study's.", examples=[10]
    )

    @classmethod
    def key_order(cls) -> list[str]:
        """The experiment's own keys, followed by those that experiments share."""
        return sorted(cls.model_fields, key=lambda key: key in SHARED_KEYS)

    def changed(self, *keys: str) -> list[str]:
        """Those of the keys whose value is not the default. The file in a study folder has all defaults."""
        return [key for key in keys if getattr(self, key) != type(self).model_fields[key].default]

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        """Settings that are invalid for a model with `depth` layers."""
        yield from ()

    def variants(self, depth: int) -> Iterator[Variant]:
        """All variants of a model with `depth` layers, baselines first. Requires that `depth_errors` is empty."""
        raise NotImplementedError

    def trials_of(self, variant: Variant) -> PerSize | None:
        """Trials of a point, in place of the study's."""
        return self.trials

    def summary(self) -> str:
        """What the experiment does, as one clause for the description of a study."""
        raise NotImplementedError


def all_or_numbers(lowest: int) -> PlainValidator:
    """Validator: "all", or one or more integers of at least `lowest`, as a tuple."""

    def is_valid(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= lowest

    def check(value: Any) -> Literal["all"] | tuple[int, ...]:
        if value == "all":
            return "all"
        values = as_tuple(value)
        if values and all(map(is_valid, values)):
            return values
        raise ValueError(f'allowed: "all", or a list of integers of at least {lowest}, such as [1, 6]')

    return PlainValidator(check)


def layer_range(first: int, last: int) -> tuple[int, ...]:
    """The layers from `first` to `last`, both included."""
    return tuple(range(first, last + 1))


def peft_lr_text(lrs: tuple[float, ...] | None) -> str:
    """The learning rates of `peft_lr` as the end of a clause; empty for None."""
    rates = [f"{lr:g}" for lr in dict.fromkeys(lrs or ())]
    return f" with learning rate {join_list(rates, 'or')}" if rates else ""


def format_layers(layers: Iterable[int]) -> str:
    """(3,) -> "layer 3", (1, 6) -> "layers 1 and 6" """
    layers = tuple(layers)
    return f"{'layer' if len(layers) == 1 else 'layers'} {join_list(layers)}"


class TaskExperiment(Experiment):
    """Base class of the experiments that train on tasks."""

    tasks: Names = Field(default="all", description='Tasks of the study to use: "all", or a list of names.')

    @field_validator("tasks")
    @classmethod
    def _check_tasks(cls, value: Any) -> Any:
        if not value:
            raise ValueError('name at least one task, or remove the key for "all"')
        return value


class FinetuningExperiment(TaskExperiment):
    """Base class of the experiments that finetune models."""

    evaluate_every_epoch: ClassVar[bool] = False

    epochs: CountPerSize | None = Field(
        default=None, description="Number of epochs, in place of the one in [training].", examples=[3]
    )
    lr: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="Learning rate, in place of the one in [training].", examples=[2e-5]
    )
    training: TrainingSpec | None = Field(
        default=None,
        description="Keys of [training] that are different in this experiment.",
        examples=[{"weight_decay": 0.01}],
    )

    @model_validator(mode="after")
    def _check_training(self) -> Self:
        given = self.training.model_fields_set if self.training is not None else set()
        twice = [key for key in ("epochs", "lr") if key in given and key in self.model_fields_set]
        if twice:
            raise_problems(*((key, f"`{key}` is also in `training`; remove one of them") for key in twice))
        return self

    def training_of(self, study: TrainingSpec) -> TrainingSpec:
        """The study's hyperparameters with those that this experiment replaces."""
        if self.training is None:
            return study
        return study.model_copy(
            update={key: getattr(self.training, key) for key in self.training.model_fields_set}
        )


class ReinitExperiment(FinetuningExperiment):
    """Base class of the experiments that re-initialize layers."""

    recipe: Recipes | None = Field(
        default=None,
        description="Re-initialization recipe, in place of the study's; with a list, each is run.",
        examples=["bert_init"],
    )
    keep_layer_norm: Flags | None = Field(
        default=None,
        description="Whether re-initialized layers keep their pretrained layer norms, in place of the study's; with "
        "a list, each is run.",
        examples=[[False, True]],
    )
    reinit_pooler: Flags = Field(
        default=(False,),
        description='Whether the pooler is re-initialized with the layers (head = "pooler"); with a list, each is run.',
    )
    reinit_lr_factor: Factors = Field(
        default=(1.0,),
        description="Learning rate of re-initialized layers, as a multiple of lr; with a list, each is run.",
    )


def baselines(depth: int) -> Iterator[Variant]:
    """The model with all and with none of its layers pretrained."""
    yield Variant(ALL_PRETRAINED, 0, is_baseline=True)
    yield Variant(NONE_PRETRAINED, 0, reinit=layer_range(1, depth), is_baseline=True)


def none_if_identity(order: tuple[int, ...], depth: int) -> tuple[int, ...] | None:
    """`order`, or None if it leaves all layers in place."""
    return None if order == layer_range(1, depth) else order
