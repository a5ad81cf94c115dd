"""The incremental experiment with longer training, evaluated after every epoch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whichlayers.config.sections import CountPerSize, PerSize
from whichlayers.experiments.display import Display
from whichlayers.experiments.incremental import Incremental
from whichlayers.experiments.layer_counts import LayerCounts


class Epochs(Incremental):
    """Test whether longer training closes the gap: metric and loss after each epoch, for a few values of k."""

    kind: Literal["epochs"] = "epochs"  # type: ignore[assignment]
    displays = (
        Display(
            name="epochs",
            title="Longer finetuning",
            x_label="pretrained layers kept (k)",
            description="The first k layers keep their pretrained weights, all layers above are re-initialized, and "
            "the whole model is finetuned for more epochs. The scores are those after the last epoch.",
            conditions={"": "after the last epoch"},
            learning_curves=True,
            relative_depth=True,
        ),
    )
    evaluate_every_epoch = True
    keep: LayerCounts = Field(
        default=(0, "half", "depth"),
        description='Values of k: "all" for 0 to the depth of the model, or a list of numbers, "half", "depth", and '
        '"depth-3" for all but 3 layers.',
    )
    epochs: CountPerSize | None = Field(
        default=PerSize(10), description="Number of epochs; the model is evaluated after each.", examples=[10]
    )

    def summary(self) -> str:
        return f"{super().summary()}, evaluated after every epoch"
