"""Tables of a study: summary.csv, the grid of all points, gains, correlations between tasks, the tables of papers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from whichlayers.analysis.correlations import task_correlations
from whichlayers.analysis.incremental_curves import curves, incremental_steps
from whichlayers.analysis.intervals import SIGNIFICANT, summarize, t_interval
from whichlayers.analysis.published import (
    PUBLISHED_FAMILIES,
    published_correlations,
    published_neuron_fraction,
    published_word_probing,
)
from whichlayers.experiments import display_of
from whichlayers.plots.display_names import size_name
from whichlayers.plots.published_overlay import PUBLISHED_TABLES, comparable_pruning
from whichlayers.plots.word_figures import PRETRAINED, model_labels
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.results.frames import CURVE
from whichlayers.text import (
    BEYOND_NOTE,
    format_half_width,
    format_p,
    format_percent,
    format_range,
    format_score,
    in_points,
    is_beyond,
    join_list,
    short_names,
)
from whichlayers.trial import ALL_PRETRAINED, BASELINES

CELL = ["experiment", "condition", "model", "task", "train_size", "recipe", "x"]
STATISTICS = ["mean", "low", "high", "sd", "n"]
FURTHER = ["metric", "variant", "head", "keep_layer_norm", "reinit_lr_factor", "model_fingerprint"]
PAPER_TEXT_COLUMNS = {"model", "task", "corpus", "finetuned on", "variant", "neurons"}
PAPER_NOTE = "Mean over trials ± half of the 95% t interval, in points (metric × 100)."
COMPRESSION_NOTE = (
    " Compression: how many times shorter the online code of the tags is than a uniform code, mean over trials, for "
    "the corpus and for the control task."
)
PUBLISHED_NOTE = " Published: Durrani et al. 2021, {}, for {}."


@dataclass(frozen=True)
class TextTable:
    """A table of formatted cells by column name."""

    label: str
    headers: Mapping[str, str]  # column name -> displayed header
    rows: Sequence[Mapping[str, str]]
    text_columns: frozenset[str]  # columns that hold text rather than numbers
    note: str = ""
    wide_columns: frozenset[str] = frozenset()  # columns that hold long text


@dataclass(frozen=True)
class GridCell:
    """Mean and half of the 95% t interval of one point, as numbers and as text."""

    mean: float
    half_width: float  # NaN if there is a single trial
    metric: str

    @property
    def text(self) -> str:
        return format_score(self.mean, self.metric)

    @property
    def is_beyond(self) -> bool:
        """Whether the interval extends beyond the range of the metric."""
        return is_beyond(self.mean - self.half_width, self.mean + self.half_width, self.metric)

    @property
    def half_text(self) -> str:
        return format_half_width(self.half_width, self.metric)


@dataclass(frozen=True)
class GridRow:
    """One curve: its labels, and one cell per value column."""

    labels: tuple[str, ...]  # values of the label columns
    cells: tuple[GridCell | None, ...]  # None: no trial has finished


@dataclass(frozen=True)
class SummaryGrid:
    """All curves of an experiment as a table."""

    label_columns: tuple[str, ...]  # names of the columns that identify a curve: task, examples ...
    columns: tuple[str, ...]  # names of the value columns: baselines, then values of x
    rows: tuple[GridRow, ...]
    x_label: str = ""
    n_baselines: int = 0  # number of leading value columns that hold baselines
    in_points: bool = True  # whether the values are shown × 100

    @property
    def note(self) -> str:
        """A sentence on intervals that extend beyond the range of the metric; empty if there are none."""
        cells = (cell for row in self.rows for cell in row.cells if cell is not None)
        return BEYOND_NOTE if any(cell.is_beyond for cell in cells) else ""


def summary(points: pd.DataFrame) -> pd.DataFrame:
    """Content of summary.csv: one row per point with a finished trial."""
    order = points[CELL + FURTHER].drop_duplicates().reset_index(drop=True).reset_index(names="position")
    table = summarize(points, CELL + FURTHER).merge(order, on=CELL + FURTHER, how="left")
    table = table.sort_values(["experiment", "position"], kind="stable")
    return table[CELL + STATISTICS + FURTHER].reset_index(drop=True)


def summary_grid(points: pd.DataFrame, experiment: str) -> SummaryGrid:
    """Summary of an experiment with baselines first, then x from left to right.

    The label columns are the task, the training size if the model is finetuned, and whatever else varies.
    """
    display, chosen = display_of(experiment), points[points["experiment"] == experiment]
    is_baseline = chosen["condition"].isin(BASELINES)
    cells = chosen[~is_baseline]
    keys = [b for b in BASELINES if (chosen["condition"] == b).any()] + sorted(set(cells["x"]))
    columns = tuple(
        display.baseline_header(key) if isinstance(key, str) else display.x_name(key) for key in keys
    )
    conditions = list(dict.fromkeys(cells["condition"])) or [""]
    included = {
        "model": chosen["model"].nunique() > 1,
        display.task_noun: True,
        "examples": bool((chosen["train_size"] > 0).any()),
        "variant": chosen["variant"].nunique() > 1,
        "condition": len(conditions) > 1,
    }
    models, tasks = short_names(chosen["model"]), short_names(chosen["task"])
    rows = []
    for (_, model, _, task, size, variant), curve in each_group(chosen, CURVE):
        metric = str(curve["metric"].iloc[0])
        for condition in conditions:
            part = curve[curve["condition"].isin([condition, *BASELINES])]
            if not (part["condition"] == condition).any() and len(conditions) > 1:
                continue
            row_keys = part["x"].astype(object).where(~part["condition"].isin(BASELINES), part["condition"])
            found = {
                row.key: GridCell(row.mean, (row.high - row.low) / 2, metric)
                for row in each_row(summarize(part.assign(key=row_keys), ["key"]))
            }
            named = {
                "model": models[model],
                display.task_noun: tasks[task],
                "examples": size_name(size),
                "variant": variant,
                "condition": display.condition_name(condition),
            }
            labels = tuple(named[name] for name, include in included.items() if include)
            rows.append(GridRow(labels, tuple(found.get(key) for key in keys)))
    label_columns = tuple(name for name, include in included.items() if include)
    n_baselines = sum(isinstance(key, str) for key in keys)
    scaled = all(map(in_points, chosen["metric"]))
    return SummaryGrid(label_columns, columns, tuple(rows), display.x_header, n_baselines, scaled)


def _without_constant(
    headers: Mapping[str, str], rows: Sequence[Mapping[str, str]], names: Iterable[str]
) -> dict[str, str]:
    """Headers without those of the columns `names` that have the same value in all rows."""
    constant = {name for name in names if len({row.get(name) for row in rows}) == 1}
    return {name: header for name, header in headers.items() if name not in constant}


def gain_table(points: pd.DataFrame) -> TextTable:
    """One row per curve: scores with none and all layers pretrained, gain, k with 90% of it, significant layers."""
    steps = incremental_steps(points)
    models, tasks = short_names(points["model"]), short_names(points["task"])
    rows = []
    for c in curves(points):
        steps_of_curve = steps[
            (steps["model"] == c.model)
            & (steps["task"] == c.task)
            & (steps["train_size"] == c.train_size)
            & (steps["variant"] == c.variant)
        ]
        clear = steps_of_curve[steps_of_curve["p_adjusted"] < SIGNIFICANT]
        rows.append(
            {
                "model": models[c.model],
                "task": tasks[c.task],
                "examples": size_name(c.train_size),
                "variant": c.variant,
                "none": format_score(c.means[0], c.metric) if 0 in c.means else "",
                "all": format_score(c.means[c.depth], c.metric) if c.depth in c.means else "",
                "gain": format_score(c.gain.mean, c.metric, signed=True) if c.gain else "",
                "interval": format_range(c.gain.low, c.gain.high, c.metric, signed=True) if c.gain else "",
                "n": str(c.gain.n) if c.gain else "0",
                "reaches": "" if c.reaches is None else str(c.reaches),
                "steps": ", ".join(_step(s, c.metric) for s in each_row(clear)) or "none",
            }
        )
    headers = {"task": "task", "model": "model", "variant": "variant", "examples": "examples", "none": "none"}
    headers |= {"all": "all", "gain": "gain", "interval": "95% interval", "n": "pairs", "reaches": "90% at k"}
    headers |= {"steps": "significant layers"}
    headers = _without_constant(headers, rows, ("model", "variant"))
    text_columns = frozenset({"task", "model", "variant", "steps"})
    return TextTable("Gain from pretraining", headers, rows, text_columns, wide_columns=frozenset({"steps"}))


def _step(step: Any, metric: str) -> str:
    """Layers of a step and its effect, e.g. "3 (+2.1)"."""
    first, last = step.from_k + 1, step.to_k
    layers = first if first == last else f"{first}–{last}"
    return f"{layers}\u00a0({format_score(step.mean, metric, signed=True)})"


def correlation_table(points: pd.DataFrame) -> TextTable | None:
    """Correlations between the scores of two tasks over permutations, as in Table 1 of Tamkin et al. 2020."""
    short, published, rows = short_names(points["task"]), published_correlations(), []
    models = short_names(points["model"])
    for pair in each_row(task_correlations(points)):
        row = {"tasks": f"{short[pair.task]}, {short[pair.other]}", "model": models[pair.model]}
        row |= {"variant": pair.variant, "examples": size_name(pair.train_size), "n": str(pair.n)}
        for kind in ("spearman", "pearson"):
            row[kind] = f"{format_score(getattr(pair, kind), 'r')} ({format_p(getattr(pair, f'{kind}_p'))})"
            value = published.get((frozenset({pair.task, pair.other}), kind))
            row[f"published_{kind}"] = "" if value is None else f"{value[0]:.2f} ({value[1].split(',')[0]})"
        rows.append(row)
    if not rows:
        return None
    headers = {"tasks": "tasks", "model": "model", "variant": "variant"}
    headers |= {"examples": "examples", "n": "permutations"}
    headers |= {"spearman": "Spearman (p)", "pearson": "Pearson (p)"}
    headers |= {"published_spearman": "published Spearman", "published_pearson": "published Pearson"}
    for name in ("variant", "published_spearman", "published_pearson"):
        if not any(row[name] for row in rows):
            del headers[name]
    headers = _without_constant(headers, rows, ("model",))
    label = "Correlation between tasks over permutations"
    has_published = any(name.startswith("published") for name in headers)
    note = "Published: Tamkin et al. 2020, Table 1, BERT-Base." if has_published else ""
    return TextTable(label, headers, rows, frozenset({"tasks", "model", "variant"}), note)


# --- tables in the format of Durrani et al. 2021, with the published values: pruning, sets of neurons, selectivity


def paper_tables(points: pd.DataFrame, experiment: str) -> list[TextTable]:
    """Tables of an experiment from finished points; empty for experiments that the paper does not have."""
    chosen, source = points[points["experiment"] == experiment], PUBLISHED_TABLES.get(experiment, "")
    if experiment == "prune":
        return _paper_table("Top or bottom layers dropped", _pruning(chosen), source, chosen)
    if experiment == "neurons":
        models = short_names(chosen["model"])
        return [
            table
            for (corpus, model), group in each_group(chosen, ["task", "model"])
            for table in _paper_table(
                f"{corpus}, {models[model]}: accuracy with sets of neurons",
                _sets(group),
                source,
                group,
            )
        ]
    if experiment == "selectivity":
        lengths = points[points["experiment"] == "description_length"]
        label = "Accuracy and selectivity of all neurons and of the top neurons"
        return _paper_table(label, _selectivity(chosen, lengths), source, chosen)
    return []


def _paper_table(
    label: str, rows: Iterator[dict[str, str]], source: str, points: pd.DataFrame
) -> list[TextTable]:
    """A list with one table, or an empty list if there are no rows; `source` names the published tables."""
    found = list(rows)
    if not found:
        return []
    names = list(dict.fromkeys(name for row in found for name in row))
    headers = {name: name for name in names if any(row.get(name) for row in found)}
    note = PAPER_NOTE + (COMPRESSION_NOTE if "compression" in headers else "")
    if any(name.startswith("published") for name in headers):
        families = [PUBLISHED_FAMILIES[f] for f in dict.fromkeys(points["family"]) if f in PUBLISHED_FAMILIES]
        note += PUBLISHED_NOTE.format(source, join_list(families))
    omitted = (
        ["model", "variant"]
        if next(iter(headers)) == "finetuned on"
        else ["model", "variant", "finetuned on"]
    )
    headers = _without_constant(headers, found, omitted)
    full = [{name: row.get(name, "") for name in headers} for row in found]
    return [TextTable(label, headers, full, frozenset(headers) & PAPER_TEXT_COLUMNS, note)]


def _pruning(rows: pd.DataFrame) -> Iterator[dict[str, str]]:
    """One row per model, task, size and variant: scores with the top or bottom layers dropped."""
    models, tasks = short_names(rows["model"]), short_names(rows["task"])
    ends = rows[rows["condition"].isin([ALL_PRETRAINED, "top", "bottom"])]
    for (model, task, size, variant), curve in each_group(ends, ["model", "task", "train_size", "variant"]):
        row = {"model": models[model], "task": tasks[task], "examples": size_name(size), "variant": variant}
        row["baseline"] = _mean(curve[curve["condition"] == ALL_PRETRAINED])
        dropped = sorted(set(curve.loc[curve["condition"] != ALL_PRETRAINED, "x"]))
        for n in dropped:
            for end in ("top", "bottom"):
                row[f"{end} {n:g} dropped"] = _mean(curve[(curve["condition"] == end) & (curve["x"] == n)])
        named = {"none": "baseline", "prune top 6": "top 6", "prune bottom 6": "bottom 6"}
        yield row | _published(named, comparable_pruning(curve))


def _sets(rows: pd.DataFrame) -> Iterator[dict[str, str]]:
    """For one model and corpus: one row per task that the model was finetuned on, one column per set of neurons."""
    rows = rows.assign(model_label=model_labels(rows))
    rows = rows.sort_values("finetuned_on", key=lambda names: names != "", kind="stable")
    for (name,), group in each_group(rows, ["model_label"]):
        row = {"finetuned on": str(name), "all neurons": _mean(group[group["neurons"] == "all"])}
        first = group.iloc[0]
        corpus, sets = str(first["task"]), group[group["share"].notna()]
        published = published_word_probing(str(first["family"]), corpus, str(first["finetuned_on"]))
        for (ranking, share, which), cell in each_group(sets, ["ranking", "share", "neurons"]):
            row[f"{which} {format_percent(share)}{'' if ranking == 'lca' else f', {ranking}'}"] = _mean(cell)
            if ranking == "lca" and share == published_neuron_fraction(corpus):
                row |= _published({which: which}, published)
        yield row


def _selectivity(rows: pd.DataFrame, lengths: pd.DataFrame) -> Iterator[dict[str, str]]:
    """One row per corpus, model and set of neurons: all of them, and the top ones of each fraction."""
    models = short_names(rows["model"])
    rows = rows.assign(model_label=model_labels(rows))
    lengths = lengths.assign(model_label=model_labels(lengths)) if len(lengths) else lengths
    for (corpus, model, name), group in each_group(rows, ["task", "model", "model_label"]):
        same = lengths
        if len(lengths):
            same = lengths[
                (lengths["task"] == corpus) & (lengths["model"] == model) & (lengths["model_label"] == name)
            ]
        published = (
            published_word_probing(str(group["family"].iloc[0]), str(corpus), "")
            if name == PRETRAINED
            else {}
        )
        for share in [float("nan"), *sorted(set(group["share"].dropna()))]:
            all_neurons = pd.isna(share)
            cell, code_lengths = (
                part[part["share"].isna() if all_neurons else part["share"] == share]
                for part in (group, same)
            )
            row = {"corpus": str(corpus), "model": models[model], "finetuned on": str(name)}
            row["neurons"] = "all" if all_neurons else f"top {format_percent(share)}"
            row["accuracy"] = _mean(cell.assign(value=cell["value"] + cell["control"]))
            row["selectivity"] = _mean(cell)
            if len(code_lengths):
                row["compression"] = _mean_only(code_lengths)
                row["compression, control"] = _mean_only(code_lengths.assign(value=code_lengths["control"]))
            if all_neurons or share == published_neuron_fraction(str(corpus)):
                keys = ("accuracy all neurons", "selectivity all")
                keys = keys if all_neurons else ("accuracy selected neurons", "selectivity selected")
                row |= _published(dict(zip(keys, ("accuracy", "selectivity"), strict=True)), published)
            yield row


def _published(names: Mapping[str, str], published: Mapping[str, float]) -> dict[str, str]:
    """Cells of the published values; `names` maps their keys to the columns they correspond to."""
    return {
        f"published {name}": format_score(published[key]) for key, name in names.items() if key in published
    }


def _mean(rows: pd.DataFrame) -> str:
    """Mean ± half of the 95% interval in points."""
    if rows.empty:
        return ""
    i = t_interval(rows["value"])
    return f"{format_score(i.mean)} {format_half_width(i.half_width)}".rstrip()


def _mean_only(rows: pd.DataFrame) -> str:
    return "" if rows.empty else format_score(rows["value"].mean(), "compression")
