"""Selectivity: probes compared with probes of a control task, and their description length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from whichlayers.experiments.display import Display
from whichlayers.experiments.word_base import (
    SET_SIZE,
    ProbeVariant,
    RankingExperiment,
    format_percentages,
    percent,
)


class Selectivity(RankingExperiment):
    """Compare probes with probes of a control task, which assigns a random tag to every word type."""

    kind: Literal["selectivity"] = "selectivity"
    displays = (
        Display(
            name="selectivity",
            title="Selectivity (accuracy minus control task)",
            x_label="finetuned on",
            description="Accuracy minus accuracy on a control task in which every word type has a random tag.",
            plot="by_model",
            x_column=SET_SIZE,
            x_names={100: "all"},
            shared_y=True,
        ),
        Display(
            name="description_length",
            title="Description length",
            x_label="finetuned on",
            description="Compression: how many times shorter the online code of the tags is than a uniform code.",
            plot="by_model",
            x_column=SET_SIZE,
            x_names={100: "all"},
            shared_y=True,
        ),
    )
    description_length: Annotated[bool, Field(strict=True)] = Field(
        default=True,
        description="Whether to also measure the compression of the tags by a probe (description length, online "
        "code).",
    )

    def probe_variants(self, depth: int) -> Iterator[ProbeVariant]:
        measures: list[tuple[str, str]] = [(self.kind, "selectivity")]
        measures += [("description_length", "compression")] if self.description_length else []
        for experiment, measure in measures:
            yield ProbeVariant(experiment, "all neurons", 100, {"measure": measure})
            for share in self.shares:
                settings = {"measure": measure, "neurons": "top", "share": share}
                yield ProbeVariant(experiment, "top", percent(share), settings)

    def summary(self) -> str:
        shares = format_percentages(self.shares)
        return f"compare probes of all neurons and of the top {shares} with probes of a control task"
