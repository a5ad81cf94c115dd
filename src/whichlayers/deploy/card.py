"""The model card of a built model, and the license of its base model."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whichlayers.analysis.intervals import ends_of_one_of, t_interval
from whichlayers.analysis.recommend.base import describe_layers
from whichlayers.catalog import METRICS
from whichlayers.deploy.adapters import ADAPTER_FOLDER
from whichlayers.deploy.text_model import Metadata
from whichlayers.deploy.train import Score
from whichlayers.models.find import PACKAGE_PREFIX
from whichlayers.text import counted, format_range, format_score, label_names
from whichlayers.trial import Trial, get_probe
from whichlayers.version import __version__

# for models with a head that transformers has no class for
NOT_A_CLASSIFIER = (
    "Do not load it with `AutoModelForSequenceClassification` or `pipeline`: they would replace the head by a random "
    'one. For a model that they can load, use `head = "pooler"` in the study.'
)
POOLED = {  # what frozen features are, by the pooling of the probe
    "mean": "the mean of its hidden states",
    "summary": "the hidden state of its [CLS]-like token (decoders: of its last token)",
    "pooler": "the output of the pretrained pooler",
}
LICENSE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "COPYING")


@dataclass(frozen=True)
class BaseLicense:
    """The license of a base model, as far as its files state it."""

    name: str | None  # such as "apache-2.0"
    source: str  # where it is stated, as a clause
    file: Path | None = None  # its text


@dataclass(frozen=True)
class CardFacts:
    """What the model card says."""

    trial: Trial  # as it was finetuned, with its training size and seed
    metadata: Metadata
    license: BaseLicense
    reason: str  # why this variant
    study: str  # name of the study
    train_rows: int  # training examples that there are
    score: Score | None  # on the dev set; None for frozen features
    held_out: Score | None  # on the rows that chose the seed; only value and rows are used
    seeds: int  # number of seeds that were trained
    study_scores: Sequence[float]  # scores of the same variant in the study, on the dev set
    study_size: int  # training examples of these trials
    parameters: int
    choices: int = 1  # variants of the study that this one was chosen from, by these scores


def base_license(name: str, folder: Path) -> BaseLicense:
    """The license of a model: from its model card, its config, a license file or the package it comes in.

    Args:
        name: The model as the user named it.
        folder: Its files.
    """
    file = next((folder / one for one in LICENSE_FILES if (folder / one).is_file()), None)
    card = folder / "README.md"
    if card.is_file():
        text = card.read_text(encoding="utf-8", errors="replace")
        header = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
        found = re.search(r"^license:\s*[\"']?([\w.\-]+)", header[1], re.MULTILINE) if header else None
        if found:
            return BaseLicense(found[1], "its model card", file)
    try:
        stated = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("license")
    except (OSError, ValueError, AttributeError):
        stated = None
    if isinstance(stated, str) and stated:
        return BaseLicense(stated, "its config.json", file)
    if file is not None:
        return BaseLicense(None, f"the file {file.name}, which is included", file)
    if name.startswith(PACKAGE_PREFIX):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            metadata = importlib.metadata.metadata(name.removeprefix(PACKAGE_PREFIX))
            for key in ("License-Expression", "License"):
                if key in metadata:
                    return BaseLicense(metadata[key].splitlines()[0], "the metadata of its package")
    return BaseLicense(None, "")


def model_card(facts: CardFacts) -> str:
    """The content of README.md."""
    parts = [
        _front_matter(facts),
        f"# {facts.metadata.task}: {_shape(facts)}",
        _what_was_done(facts),
        _scores(facts),
        "## How to use\n\n" + _usage(facts.metadata) + _adapter_usage(facts),
        _license(facts),
        f"Written by whichlayers {__version__}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _shape(facts: CardFacts) -> str:
    m = facts.metadata
    kept = (
        f"{len(m.layers)} of {counted(m.depth, 'layer')}"
        if len(m.layers) < m.depth
        else counted(m.depth, "layer")
    )
    return f"{_base_name(m.base_model)}, {kept}"


def _base_name(name: str) -> str:
    return Path(name).name if Path(name).is_absolute() else name.removeprefix(PACKAGE_PREFIX)


def _is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not Path(name).exists()


def _front_matter(facts: CardFacts) -> str:
    m = facts.metadata
    library = "transformers" if m.layout == "sequence_classification" else "sentence-transformers"
    task = "text-classification" if m.layout == "sequence_classification" else "feature-extraction"
    values: dict[str, Any] = {"library_name": library, "pipeline_tag": task, "tags": ["whichlayers"]}
    if facts.license.name:
        values = {"license": facts.license.name} | values
    if _is_hub_id(m.base_model):
        values["base_model"] = m.base_model
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---"])


def _what_was_done(facts: CardFacts) -> str:
    m, trial = facts.metadata, facts.trial
    training, surgery = trial.training, trial.surgery
    base = _base_name(m.base_model) + (f" at {trial.revision}" if trial.revision else "")
    lines = [f"- Base model: {base}, {counted(m.depth, 'layer')}."]
    if len(m.layers) < m.depth:
        lines.append(f"- Kept: {describe_layers(m.layers)}; the others were removed.")
    elif surgery.order is not None:
        lines.append(f"- Layer order: {', '.join(map(str, surgery.order))}.")
    if surgery.reinit:
        lines.append(
            f"- Re-initialized before finetuning: {describe_layers(surgery.reinit)} ({surgery.recipe})."
        )
    lines += [f"- {text}." for text in _trained_parts(trial)]
    if m.layout == "features":
        pooling = POOLED[get_probe(trial).pooling]
        lines.append(f"- Not finetuned: the pretrained weights are unchanged; a text is {pooling}.")
    else:
        rows = f"{trial.train_size:,} of {facts.train_rows:,} training examples"
        lines.append(
            f"- Finetuned on {m.task} with {rows}: {counted(training.epochs, 'epoch')}, batch size "
            f"{training.batch_size}, learning rate {training.lr:g}, seed {trial.seed}, at most "
            f"{training.max_length} tokens."
        )
        if facts.seeds > 1 and facts.held_out is not None:
            lines.append(
                f"- Chosen among {facts.seeds} seeds by its score on {facts.held_out.rows:,} training examples that "
                f"were held out of training ({format_score(facts.held_out.value, facts.held_out.metric)}), not by "
                "the dev set."
            )
    lines.append(f"- Parameters: {facts.parameters:,}, without the linear layer.")
    if m.labels:
        lines.append(f"- Labels: {', '.join(label_names(m.labels))}.")
    lines.append(f"- Why: {facts.reason}")
    return "## What was done\n\n" + "\n".join(lines)


def _trained_parts(trial: Trial) -> Iterator[str]:
    """What was frozen, and where adapters were trained."""
    training, adapter = trial.training, trial.adapter
    frozen = [layer for layer in training.frozen_layers if layer]
    if frozen:
        embeddings = " and the embeddings" if 0 in training.frozen_layers else ""
        yield f"Frozen: {describe_layers(frozen)}{embeddings}"
    if training.parameters != "all":
        yield f"Trained: the {training.parameters} and the head; everything else was frozen"
    factors = {layer: factor for layer, factor in training.lr_factors if factor not in (0, 1)}
    if factors:
        lowest = min(factors)
        where = f"layer {lowest}" if lowest else "the embeddings"
        yield (
            f"Learning rate by layer: from {factors[lowest]:.2g} times the learning rate in {where} to the learning "
            "rate in the highest layer"
        )
    if adapter is not None:
        name = f"LoRA (rank {adapter.rank}, alpha {adapter.alpha:g})" if adapter.method == "lora" else "IA3"
        yield (
            f"Trained: {name} in {describe_layers(adapter.layers)} ({', '.join(adapter.targets)}) and the head; "
            f"everything else was frozen. The weights here include the adapters; {ADAPTER_FOLDER}/ holds them for peft"
        )


def _scores(facts: CardFacts) -> str:
    lines = []
    if (score := facts.score) is not None:
        lines.append(
            f"- This model: {_metric(score.metric)} {format_score(score.value, score.metric)} (95% bootstrap interval "
            f"over the {score.rows:,} dev examples: {format_range(score.low, score.high, score.metric)})."
        )
    if facts.study_scores:
        metric = score.metric if score is not None else facts.metadata.details["metric"]
        i = t_interval(list(facts.study_scores))
        low, high = ends_of_one_of(facts.choices, i.mean, i.sd, i.n)
        chosen = f", adjusted for the choice among {facts.choices}" if facts.choices > 1 else ""
        interval = f", 95% t interval {format_range(low, high, metric)}{chosen}" if i.n > 1 else ""
        lines.append(
            f"- The same variant in the study {facts.study}, with {facts.study_size:,} training examples: "
            f"{_metric(metric)} {format_score(i.mean, metric)} (mean of {counted(i.n, 'trial')}{interval})."
        )
    note = "Scores are in points (100 times the metric), on the dev set of the task."
    return "## Scores\n\n" + note + "\n\n" + "\n".join(lines) if lines else ""


def _metric(metric: str) -> str:
    return METRICS[metric].display_name if metric in METRICS else metric


def _usage(m: Metadata) -> str:
    example = '["first text", "second text"]'
    pair = "\n# two texts per example: model.predict(texts, pairs)" if m.pairs else ""
    ours = (
        '```python\nimport whichlayers\n\nmodel = whichlayers.load_model("FOLDER")\n'
        f"model.predict({example}){pair}\n```"
    )
    if m.layout == "sequence_classification":
        return (
            f"{ours}\n\nor without whichlayers:\n\n```python\nfrom transformers import pipeline\n\n"
            f'pipeline("text-classification", model="FOLDER")("some text")\n```'
        )
    if m.layout == "features":
        return (
            "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
            f'SentenceTransformer("FOLDER").encode({example})  # (2, hidden size)\n```'
        )
    return (
        f"{ours}\n\nor without whichlayers; the outputs are the logits of the labels:\n\n"
        "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        f'SentenceTransformer("FOLDER").encode({example})  # (2, number of labels)\n```\n\n{NOT_A_CLASSIFIER}'
    )


def _adapter_usage(facts: CardFacts) -> str:
    """How peft loads the adapters on their own; empty if there are none."""
    if facts.trial.adapter is None:
        return ""
    name = facts.metadata.base_model
    base, where = (
        (name, "") if _is_hub_id(name) else ("BASE", f", where BASE is the folder of {_base_name(name)}")
    )
    return (
        f"\n\nor the adapters alone, with peft, on the base model{where}; the outputs are hidden states:\n\n"
        "```python\nfrom peft import PeftModel\nfrom transformers import AutoModel\n\n"
        f'PeftModel.from_pretrained(AutoModel.from_pretrained("{base}"), "FOLDER/{ADAPTER_FOLDER}")\n```'
    )


def _license(facts: CardFacts) -> str:
    base, stated = _base_name(facts.metadata.base_model), facts.license
    if stated.name is None and not stated.source:
        text = f"The files of the base model ({base}) do not state a license: find it out before you share this model."
    else:
        text = f"The base model ({base}) is licensed as stated in {stated.source}"
        text += f": {stated.name}." if stated.name else "."
        text += (
            " This model is derived from it. The license of the training data is not known to whichlayers."
        )
    return "## License\n\n" + text
