"""Measure what a model costs at inference: parameters, size on disk and latency on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whichlayers.analysis.recommend import Answer
from whichlayers.errors import WhichlayersError
from whichlayers.results.costs import ModelCost, find_cost, read_costs, write_costs
from whichlayers.results.folder import StudyFolder
from whichlayers.runs.assets import Assets

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENS = 128  # of the text that is timed, unless the study's texts are shorter
ROUNDS = 9  # the models take turns, so that other load on the machine affects all of them
FLOAT32_BYTES = 4


def answer_costs(folder: StudyFolder, answers: Iterable[Answer]) -> list[ModelCost]:
    """Measure the models that the answers recommend or compare with, unless their costs are known, and store them.

    Models that are no longer available are left out.
    """
    from whichlayers.study.study_file import load_study

    wanted: dict[str, set[tuple[int, ...]]] = {}
    for answer in answers:
        if answer.layers:
            full = tuple(range(1, answer.depth + 1))
            wanted.setdefault(answer.model_fingerprint, set()).update({answer.layers, full})
    costs = read_costs(folder.path)
    missing = {
        fingerprint
        for fingerprint, sets in wanted.items()
        if any(find_cost(costs, fingerprint, layers) is None for layers in sets)
    }
    if not missing:
        return costs
    try:
        study = load_study(folder.study_file)
    except WhichlayersError:
        return costs
    assets = Assets(None)
    for spec in study.models:
        try:
            files = assets.model_files(spec)
        except WhichlayersError:
            continue
        if files.fingerprint in missing:
            from whichlayers.models.load import load_encoder

            tokens = min(TOKENS, study.training.max_length)
            measured = measure_costs(
                load_encoder(files), files.fingerprint, sorted(wanted[files.fingerprint]), tokens
            )
            costs = [c for c in costs if c.model_fingerprint != files.fingerprint] + measured
    write_costs(folder.path, costs)
    return costs


def measure_costs(
    encoder: PreTrainedModel, fingerprint: str, layer_sets: Sequence[tuple[int, ...]], tokens: int = TOKENS
) -> list[ModelCost]:
    """The cost of an encoder with each of these sets of layers.

    Args:
        encoder: The pretrained encoder; it is not modified.
        fingerprint: That of the model.
        layer_sets: The layers to keep; an empty set keeps the embeddings alone.
        tokens: Length of the text that is timed.

    Returns:
        One cost per set. The time is the median of forward passes of one text in float32, on the GPU if there is one.
    """
    import torch

    from whichlayers.models.surgery import reorder

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models = []
    for layers in layer_sets:
        if not layers:
            raise WhichlayersError("cannot measure a model without layers")
        models.append(reorder(encoder, layers).to(device).eval())  # type: ignore[arg-type]
    token = 1 if encoder.config.pad_token_id != 1 else 2  # any but padding
    ids = torch.full((1, tokens), token, device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    times: list[list[float]] = [[] for _ in models]
    with torch.inference_mode():
        for round_ in range(ROUNDS + 1):
            for model, seconds in zip(models, times, strict=True):
                started = time.perf_counter()
                model(**inputs)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                if round_:  # the first one warms up
                    seconds.append(time.perf_counter() - started)
    counts = [sum(p.numel() for p in model.parameters()) for model in models]
    where = _device_name(device.type)
    return [
        ModelCost(
            fingerprint,
            tuple(layers),
            count,
            FLOAT32_BYTES * count,
            1000 * statistics.median(t),
            tokens,
            where,
        )
        for layers, count, t in zip(layer_sets, counts, times, strict=True)
    ]


def _device_name(kind: str) -> str:
    import torch

    if kind == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread" if threads == 1 else f"CPU, {threads} threads"


def folder_size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
