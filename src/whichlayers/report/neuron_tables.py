"""The table of the top neurons: how much their sets agree between seeds, rankings and models, and which come first."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from whichlayers.analysis.neuron_overlap import FINETUNING, RANKINGS, SEEDS, neuron_overlap, shared_neurons
from whichlayers.plots.word_figures import model_labels
from whichlayers.report.tables import TextTable
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.text import format_half_width, format_percent, format_range, format_score, short_names

MOST_SHOWN = 5  # neurons in a cell
BETWEEN, WITH_PRETRAINED, WITH_LCA = "between seeds", "with the pretrained model", "with LCA"
FIRST = "first neurons in all seeds"
NAMES = (
    "corpus", "model", "finetuned on", "ranking", "neurons", BETWEEN, WITH_PRETRAINED, WITH_LCA, "random", FIRST,
)  # fmt: skip
NOTE = (
    "Percentage of the top neurons that two sets share. Between seeds: mean over pairs of trials (smallest to "
    "largest); trials of a finetuned model differ in its finetuning, too. With the pretrained model, and with LCA: "
    "paired by seed, mean ± half of the 95% t interval. Random: what random sets of this size share on average. First "
    "neurons, as layer:neuron: those with the best mean rank among the top neurons of every seed."
)


def overlap_table(neurons: pd.DataFrame) -> TextTable | None:
    """Overlap of the top neurons; None if there is nothing to compare.

    Args:
        neurons: Rows of `whichlayers.results.frames.load_top_neurons`.
    """
    rows = list(_rows(neurons)) if len(neurons) else []
    if not any(row.get(name) for row in rows for name in (BETWEEN, WITH_PRETRAINED, WITH_LCA)):
        return None
    constant = {name for name in ("model", "ranking") if len({row[name] for row in rows}) == 1}
    headers = {name: name for name in NAMES if name not in constant and any(row.get(name) for row in rows)}
    full = [{name: row.get(name, "") for name in headers} for row in rows]
    text_columns = frozenset(headers) & {"corpus", "model", "finetuned on", "ranking", FIRST}
    return TextTable("Agreement of the top neurons", headers, full, text_columns, NOTE)


def _rows(neurons: pd.DataFrame) -> Iterator[dict[str, str]]:
    """One row per corpus, model, ranking and size of the sets."""
    models, corpora = short_names(neurons["model"]), short_names(neurons["task"])
    labels = dict(
        zip(
            zip(neurons["finetuned_on"], neurons["train_size"], strict=True),
            model_labels(neurons),
            strict=True,
        )
    )
    first = shared_neurons(neurons)
    keys = ["task", "model", "finetuned_on", "train_size", "ranking", "share"]
    for key, group in each_group(neuron_overlap(neurons), keys):
        corpus, model, finetuned_on, size, ranking, share = key
        row = {"corpus": corpora[corpus], "model": models[model], "finetuned on": labels[finetuned_on, size]}
        row |= {"ranking": "LCA" if ranking == "lca" else ranking, "neurons": f"top {format_percent(share)}"}
        for found in each_row(group):
            mean = format_score(found.mean)
            if found.comparison == SEEDS:
                ends = f" ({format_range(found.min, found.max)})" if found.n > 1 else ""
                row[BETWEEN] = mean + ends
            else:
                name = {FINETUNING: WITH_PRETRAINED, RANKINGS: WITH_LCA}[found.comparison]
                half = (found.high - found.low) / 2
                row[name] = f"{mean} {format_half_width(half)}".rstrip()
        row["random"] = format_score(share)
        row[FIRST] = ", ".join(f"{layer}:{neuron}" for layer, neuron in first.get(key, ())[:MOST_SHOWN])
        yield row
