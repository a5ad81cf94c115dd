"""Probes compared with control tasks, and their description length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from whichlayers.experiments.word_base import Question, RankingExperiment, percent, share_list


class Selectivity(RankingExperiment):
    """Compare probes with a control task, in which every word type has one random tag."""

    kind: Literal["selectivity"] = "selectivity"
    description_length: Annotated[bool, Field(strict=True)] = Field(
        default=True, description="Measure how far a probe compresses the tags (online code), too."
    )

    def questions(self, depth: int) -> Iterator[Question]:
        asks: list[tuple[str, str]] = [(self.kind, "selectivity")]
        asks += [("description_length", "compression")] if self.description_length else []
        for experiment, ask in asks:
            yield Question(experiment, "all neurons", 100, {"measure": ask})
            for share in self.shares:
                settings = {"measure": ask, "neurons": "top", "share": share}
                yield Question(experiment, "top", percent(share), settings)

    def words(self) -> str:
        return f"hold probes of all neurons and of the top {share_list(self.shares)} against a control task"
