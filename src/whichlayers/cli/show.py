"""`whichlayers show`: everything about one trial."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from whichlayers.cli.as_json import AsJson, print_json
from whichlayers.cli.format import console, make_table, print_line
from whichlayers.cli.options import StudyFolderPath
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import find_folder
from whichlayers.text import format_duration, format_score, join_list, join_numbers

if TYPE_CHECKING:
    from whichlayers.results.trial_details import TrialDetails

BARS = "▁▂▃▄▅▆▇█"
MAX_NEURONS = 8
NOT_SCORES = ("train_loss", "dev_loss", "seconds")


def complete_trial(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of trials of the study on the command line that start with this text."""
    from whichlayers.results.trial_details import trial_ids

    try:
        return trial_ids(find_folder(Path(context.params["folder"])).path, incomplete)
    except (KeyError, TypeError, WhichlayersError):  # no study yet, or none with results: nothing to complete
        return []


def show(
    folder: StudyFolderPath,
    trial: Annotated[
        str,
        typer.Argument(
            metavar="TRIAL",
            help="Id of the trial, or its first characters.",
            autocompletion=complete_trial,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show everything about one trial: settings, points, epochs, loss, weight change, run and error."""
    from whichlayers.results.trial_details import trial_details

    details = trial_details(find_folder(folder).path, trial)
    if as_json:
        print_json(details)
        return
    print_line(f"trial {details.trial_id}: {details.row['status']}", "bold")
    for name, text in _settings(details):
        print_line(f"{name:<18}{text}")
    for point in details.points:
        condition = f", {point['condition']}" if point["condition"] else ""
        print_line(f"{'point':<18}{point['experiment']}{condition}, x = {point['x']:g}")
    if details.run is not None:
        print_line(f"{'run':<18}{_describe_run(details.run)}")
    if details.row["error"]:
        print_line(f"error: {details.row['error']}", "red")
    if details.epochs:
        _print_epochs(details.epochs)
    if details.loss.losses:
        steps, losses = details.loss.steps, details.loss.losses
        print_line(
            f"\ntraining loss by step: {sparkline(losses)} {losses[0]:.3f} at step {steps[0]:,},"
            f" {losses[-1]:.3f} at step {steps[-1]:,}"
        )
    if details.weight_change:
        print_line(f"weight change by layer (Frobenius norm): {describe_changes(details.weight_change)}")


def describe_changes(changes: Sequence[dict[str, Any]]) -> str:
    """Bars of the layers in order, and the layers with the smallest and the largest change."""
    by_layer = {one["layer"]: one["frobenius"] or 0.0 for one in changes}
    low, high = min(by_layer, key=by_layer.__getitem__), max(by_layer, key=by_layer.__getitem__)
    text = f"smallest {by_layer[low]:.3g} in layer {low}, largest {by_layer[high]:.3g} in layer {high}"
    if by_layer[low] == by_layer[high]:
        text = f"{by_layer[low]:.3g} in {'each layer' if len(by_layer) > 1 else f'layer {low}'}"
    layers = list(by_layer)
    where = f" (layers {layers[0]} to {layers[-1]})" if len(layers) > 1 else ""
    return f"{sparkline(list(by_layer.values()))}{where} {text}"


def sparkline(values: Sequence[float]) -> str:
    """Values as bars of eight heights, the lowest value as the lowest bar."""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def _settings(details: TrialDetails) -> list[tuple[str, str]]:
    """What determines the result of the trial, as (name, text)."""
    row = details.row
    seeds = {name: row[name] for name in row if name.startswith("seed_") and row[name] is not None}
    settings = {
        "kind": row["kind"],
        "model": row["model"],
        "task": row["task"],
        "finetuned on": row["finetuned_on"],
        "examples": f"{row['train_size']:,}" if row["train_size"] else None,
        "seed": row["seed"],
        "other seeds": ", ".join(f"{name.removeprefix('seed_')} {seed}" for name, seed in seeds.items()),
        "re-initialized": row["reinit"] and f"layers {row['reinit']} ({row['recipe']})",
        "layer order": row["layer_order"],
        "layer norms": "kept in re-initialized layers" if row["keep_layer_norm"] else None,
        "adapter": row["adapter"] and describe_adapter(json.loads(row["adapter"])),
        # a linear probe is trained with its own settings
        "probe": row["probe"] and _listed(row["probe"] | {"max_length": details.training.get("max_length")}),
        "head": row["head"],
        "prompt": repr(row["pair_template"]) if row["pair_template"] else None,
        "BOS token": None if row["bos"] is None else "added" if row["bos"] else "left out",
        "neurons": row["neurons"],
        "top neurons": row["top_neurons"] and _first_neurons(row["top_neurons"]),
        "training": _listed(details.training) if row["kind"] != "probe" else None,
        "time": _describe_time(row["kind"], row["seconds"]) if row["seconds"] is not None else None,
    }
    return [(name, str(value)) for name, value in settings.items() if value not in (None, "")]


def _listed(settings: Mapping[str, Any]) -> str:
    """Settings as "lr 0.001, epochs 3", without those that are None."""
    return ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)


def describe_adapter(adapter: Mapping[str, Any]) -> str:
    """Adapters: "lora in layers 5 and 6, alpha 16.0, dropout 0.0, rank 8, targets query and value"."""
    layers, noun = adapter["layers"], "layer" if len(adapter["layers"]) == 1 else "layers"
    settings = {name: value for name, value in adapter.items() if name not in ("method", "layers")}
    settings["targets"] = join_list(adapter["targets"])
    return f"{adapter['method']} in {noun} {join_numbers(layers)}, {_listed(settings)}"


def _first_neurons(text: str) -> str:
    """The first neurons of a set and their number, from "3:117 0:5"."""
    neurons = text.split()
    first = ", ".join(neurons[:MAX_NEURONS])
    return f"{first}, ... ({len(neurons):,}, as layer:neuron)" if len(neurons) > MAX_NEURONS else first


def _describe_time(kind: str, seconds: float) -> str:
    """Trials of a stack run at the same time: the time of a trial is its share of the time of its stack."""
    share = " (time of its stack, divided by the number of its trials)" if kind == "finetune" else ""
    return f"{format_duration(seconds, fine=True)}{share}"


def _describe_run(run: dict[str, Any]) -> str:
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run["started"]))
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run["versions"].items()))
    commit = f"; commit {run['git_commit']}" if run["git_commit"] else ""
    return f"started {started} on {run['device']}; {versions}{commit}; {run['command']}"


def _print_epochs(epochs: Sequence[dict[str, Any]]) -> None:
    """Print the table at its full width: in a narrower terminal its lines break, and no number is cut off."""
    out, table = console(), _epoch_table(epochs)
    needed = out.measure(table, options=out.options.update(max_width=1000)).maximum
    out.width = max(out.width, needed)
    out.print()
    out.print(table)
    if any("seconds" in epoch for epoch in epochs):
        print_line("seconds: of the whole stack, all trials trained together", "dim")


def _epoch_table(epochs: Sequence[dict[str, Any]]) -> Any:
    """One row per epoch: scores in points, losses, seconds of the whole stack."""
    metrics = list(dict.fromkeys(name for epoch in epochs for name in epoch if name != "epoch"))
    metrics.sort(key=lambda name: NOT_SCORES.index(name) if name in NOT_SCORES else -1)
    headers = ["epoch", *metrics]
    table = make_table(*headers, right=tuple(headers))
    for epoch in epochs:
        cells = [_cell(epoch.get(name), name) for name in metrics]
        table.add_row(Text(str(epoch["epoch"])), *map(Text, cells))
    return table


def _cell(value: float | None, name: str) -> str:
    if value is None:
        return ""
    if name == "seconds":
        return f"{value:.1f}"
    return format_score(value, "dev_loss" if name.endswith("_loss") else name)
