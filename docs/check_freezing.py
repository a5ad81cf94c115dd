"""Check the measured part of freezing.md against results/: tables, figures and verdicts of the studies in `STUDIES`.

    python docs/check_freezing.py           # say what differs; the status is 1 if anything does
    python docs/check_freezing.py --write   # write this part of the page anew first

To add a study: `python results/add_study.py STUDY_FOLDER NAME`, add NAME to `STUDIES`, and run with --write.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent / "results")]

from recompute import RESULTS, read_points, recompute_claims  # noqa: E402

from whichlayers.analysis.baseline_differences import differences_from_baseline  # noqa: E402
from whichlayers.analysis.intervals import t_interval  # noqa: E402
from whichlayers.analysis.recommend import recommend  # noqa: E402
from whichlayers.catalog import METRICS  # noqa: E402
from whichlayers.results.frame_utils import each_group  # noqa: E402
from whichlayers.text import counted, format_bytes, format_half_width, format_score, join_list, short_names  # noqa: E402
from whichlayers.trial import ALL_PRETRAINED  # noqa: E402

# folder in results/ -> what the results do not say about the model and the run
STUDIES = {
    "all-mpnet-base-v2-freeze": "a sentence encoder with a hidden size of 768, on a CPU, with linear layers in bfloat16. "
    "On CoLA, scores vary much between the three trials",
    "gte-small": "a sentence encoder with a hidden size of 384, on a CPU. On CoLA, finetuning all parameters at this "
    "learning rate with so few examples is no better than guessing, so that only SST-2 tells something about freezing",
    "smollm2-135m-instruct": "a decoder with a hidden size of 576 and weights from a 4-bit file, on a CPU, with linear "
    "layers in bfloat16",
    "carryover-bert-tiny-freeze": "a small BERT with a hidden size of 128, on a CPU. Finetuning all parameters fails at "
    "the learning rate of the adapters, which it has in the second table",
}
EXPERIMENTS = ("freeze", "adapt", "adapt_layers")
BLOCK = re.compile(r"(<!-- generated: studies -->\n).*?(<!-- end -->)", re.DOTALL)
SIGNIFICANT = 0.05
L1 = "Lee et al. 2019: finetuning the last fourth of the layers reaches 90% of the score of finetuning all of them (L1)"


def study_section(name: str) -> str:
    """The part of the page about one study: what was run, and for each experiment its figure and table."""
    points = adapters_named(read_points(RESULTS / name), RESULTS / name)
    short = short_names(points["model"])
    parts = [
        f"### {join_list(dict.fromkeys(short[model] for model in points['model']))}",
        _what_was_run(name, points),
    ]
    for experiment in [e for e in EXPERIMENTS if e in set(points["experiment"])]:
        rows = points[points["experiment"] == experiment]
        figure = f"results/{name}/figures/{experiment}.png"
        if (DOCS.parent / figure).is_file():
            tasks = join_list(dict.fromkeys(rows["task"]))
            parts.append(f"![{TITLES[experiment]} on {tasks}](../{figure})")
        for _, of_model in each_group(rows, ["model", "train_size", "variant"]):
            parts.append(table(of_model))
            parts.append(_significance(of_model))
    parts.append("\n".join(_verdicts(name, points)))
    return "\n\n".join(part for part in parts if part)


TITLES = {
    "freeze": "Score against the number of frozen layers",
    "adapt": "Score against the number of layers with adapters",
    "adapt_layers": "Score with adapters in one layer or block",
}


def adapters_named(points: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The points with the columns `method` ("LoRA of rank 8") and `layers` (those with adapters), or empty."""
    raw = pd.read_csv(folder / "results.csv.gz").drop_duplicates("trial_id").set_index("trial_id")["adapter"]
    adapters = [json.loads(text) if isinstance(text, str) else None for text in points["trial_id"].map(raw)]
    names = [
        "" if a is None else "IA3" if a["method"] == "ia3" else f"LoRA of rank {a['rank']}" for a in adapters
    ]
    layers = [() if a is None else tuple(a["layers"]) for a in adapters]
    return points.assign(method=names, layers=pd.Series(layers, index=points.index, dtype=object))


def _what_was_run(name: str, points: pd.DataFrame) -> str:
    points = points[points["experiment"].isin(EXPERIMENTS)]
    sizes = join_list([f"{n:,}" for n in sorted(set(points["train_size"]))])
    each = points.groupby(["experiment", "condition", "x", "model", "task", "train_size", "variant"])[
        "seed"
    ].nunique()
    trials = counted(each.min(), "trial") if each.nunique() == 1 else f"{each.min()} to {each.max()} trials"
    depth = join_list(sorted(set(points["depth"])), "or")
    return (
        f"{depth} layers, {sizes} training examples, {trials} per row: {STUDIES[name]}. All results: "
        f"[results/{name}](../results/{name})."
    )


def table(rows: pd.DataFrame) -> str:
    """A Markdown table of one model: a row for each trained part, with the score on each task; * if it is significantly
    different from the first row."""
    tasks = list(dict.fromkeys(rows["task"]))
    metrics = {task: str(rows.loc[rows["task"] == task, "metric"].iloc[0]) for task in tasks}
    heads = [f"{task}: {METRICS[metrics[task]].display_name} × 100" for task in tasks]
    lines = [
        f"| trained | learning rate | parameters | {' | '.join(heads)} | memory per trial |",
        "|---|---|---|" + "---|" * len(tasks) + "---|",
    ]
    stars = _significant(rows)
    for (condition, x), cell in each_group(rows, ["condition", "x"]):
        if condition in ("top", "bottom") and x == 0:
            continue  # the baseline
        scores = [_score(cell[cell["task"] == task], metrics[task]) for task in tasks]
        marked = [s + r"\*" * ((task, condition, x) in stars) for task, s in zip(tasks, scores, strict=True)]
        first = cell.iloc[0]
        lines.append(
            f"| {_trained(str(condition), int(x), first)} | {join_list([f'{lr:g}' for lr in sorted(set(cell['lr']))])} | "
            f"{int(first['trained_parameters']):,} | {' | '.join(marked)} | {format_bytes(cell['memory'].mean())} |"
        )
    return "\n".join(lines)


def _score(cell: pd.DataFrame, metric: str) -> str:
    """Mean and half of the 95% interval."""
    if cell.empty:
        return "·"
    i = t_interval(cell["value"].to_numpy())
    half = f" {format_half_width((i.high - i.low) / 2, metric)}" if len(cell) > 1 else ""
    return format_score(i.mean, metric) + half


def _trained(condition: str, x: int, row: Any) -> str:
    """What is trained besides the head, for the first column."""
    depth, place = int(row["depth"]), condition.partition(", ")[0]
    if condition == ALL_PRETRAINED:
        return "all parameters"
    if row["method"]:
        layers = row["layers"]
        where = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
        return f"{row['method']} in {f'all {depth} layers' if len(layers) == depth else where}"
    if place in ("norms", "biases"):
        return {"norms": "layer norms", "biases": "biases (BitFit)"}[place]
    if place == "head" or (place == "top" and x == depth):
        return "head only"
    first, last = (x + 1, depth) if place == "top" else (1, depth - x)
    return f"layers {first} to {last}" if first < last else f"layer {last}" if first == last else "embeddings"


def _significant(rows: pd.DataFrame) -> set[tuple[str, str, float]]:
    """(task, condition, x) of the cells whose paired difference from the baseline is significant."""
    found = differences_from_baseline(rows)
    if found.empty:
        return set()
    found = found[found["p_adjusted"] < SIGNIFICANT]
    return set(zip(found["task"], found["condition"], found["x"], strict=True))


def _significance(rows: pd.DataFrame) -> str:
    """What the stars mean; without any, the difference that comes nearest."""
    note = "paired t tests, p adjusted by Benjamini and Yekutieli over the rows of a task"
    if _significant(rows):
        return f"\\*: significantly different from the first row ({note})."
    found = differences_from_baseline(rows)
    if found.empty or found["p"].isna().all():
        return ""
    near = found.loc[found["p"].idxmin()]
    row = rows[(rows["condition"] == near["condition"]) & (rows["x"] == near["x"])].iloc[0]
    metric = str(row["metric"])
    return (
        f"No row differs significantly from the first ({note}). Nearest: "
        f"{_trained(str(near['condition']), int(near['x']), row)} on {near['task']}, "
        f"{format_score(near['mean'], metric, signed=True)} points (p {near['p']:.2g} before the adjustment)."
    )


def _verdicts(name: str, points: pd.DataFrame) -> Iterator[str]:
    """What `recommend` and the claim L1 say, one line each."""
    topic = {
        "freeze": "layers to freeze",
        "few_parameters": "biases, layer norms or head alone",
        "adapters": "layers with adapters",
        "adapter_place": "best layer",
    }
    for a in [a for a in recommend(points).answers if a.question in topic]:
        subject = f"{a.model}, {a.title}" if points["model"].nunique() > 1 else a.title
        yield f"- {subject}, {topic[a.question]}: {_first_sentence(a.text)}"
    for claim in recompute_claims(RESULTS / name):
        if claim.id == "L1" and claim.tests:
            yield f"- {L1}: " + "; ".join(f"{test.about}: {test.verdict}" for test in claim.tests) + "."


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.) ", text)[0]


def with_block(page: str) -> str:
    """The page with its generated part written anew."""
    text = "\n\n".join(map(study_section, STUDIES))
    return BLOCK.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)


def problems(page: str) -> list[str]:
    """What is wrong with the page: an outdated or missing part, or scores outside of it."""
    if not BLOCK.search(page):
        return ["no generated part"]
    found = [] if with_block(page) == page else ["the generated part is not up to date: run with --write"]
    return found + [f"not computed: {text}" for text in re.findall(r".{30}±.{10}", BLOCK.sub("", page))]


def main() -> int:
    """Print what is wrong with the page; with --write, write its generated part anew first."""
    path = DOCS / "freezing.md"
    if sys.argv[1:] == ["--write"]:
        path.write_text(with_block(path.read_text(encoding="utf-8")), encoding="utf-8")
    found = problems(path.read_text(encoding="utf-8"))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
