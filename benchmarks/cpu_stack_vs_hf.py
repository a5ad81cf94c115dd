"""Finetuning throughput on a CPU: stacks of whichlayers against plain Hugging Face loops.

All methods train on the same batches of eight SST-2 sentences, with dropout, gradient clipping, AdamW and a linear
schedule. They run in turn, round after round, in two arrangements of the same cores: one process with one thread per
core, and one process per core with one thread each. The result is the number of trial-steps per second of the whole
machine; the tables show medians over the rounds and their ratios. The second table uses CPU time instead of wall time,
which is less affected by other load on the machine. With --bfloat16, the loop with fused AdamW also runs under
torch.autocast, and the stacks also with `precision = "bfloat16"`; it pays on a CPU with bfloat16 instructions.

    python benchmarks/cpu_stack_vs_hf.py [--quick] [--bfloat16] [--model FOLDER] [--glue FOLDER] [--rounds 7]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHARED = Path(__file__).resolve().parents[2] / "shared"
SIZE, EPOCHS, BATCH, LENGTH = 4000, 3, 8, 128
# (method, arrangement) -> trial-steps per second and per CPU second, of each round
Rates = dict[tuple[str, str], list[tuple[float, float]]]
PLAIN, FUSED, PADDED = "HF loop, trimmed batches", "HF loop, trimmed, fused AdamW", "HF loop, padded to 128"
AUTOCAST = "HF loop, trimmed, fused AdamW, autocast"


def main() -> None:
    options = parse()
    cores = options.cores or os.cpu_count() or 1
    stacks = options.stacks or ([1, 4] if options.quick else [1, 4, 8, 16])
    rounds = 2 if options.quick else options.rounds
    arrangements = {f"1 process x {cores} threads": (1, cores), f"{cores} processes x 1 thread": (cores, 1)}
    rates: Rates = {}
    pools = {name: start_pool(options, stacks, *how) for name, how in arrangements.items()}
    for pipe, _ in (worker for pool in pools.values() for worker in pool):
        pipe.recv()  # ready
    methods = [PLAIN, FUSED, PADDED, *(stack_name(t) for t in stacks)]
    if options.bfloat16:
        methods[2:2] = [AUTOCAST]
        methods += [stack_name(t, "bfloat16") for t in stacks]
    for turn in range(-1, rounds):  # the first round is a warm-up
        for method in methods:
            for name, pool in pools.items():
                rate = total_rate(pool, method, options.trial_steps)
                print(
                    f"round {turn + 1}, {method}, {name}: {rate[0]:.1f} {rate[1]:.1f}",
                    file=sys.stderr,
                    flush=True,
                )
                if turn >= 0:
                    rates.setdefault((method, name), []).append(rate)
    for pool in pools.values():
        for pipe, process in pool:
            pipe.send(None)
            process.join()
    print_table(rates, methods, list(arrangements), rounds)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--model", default=str(SHARED / "models/carryover-bert-tiny"))
    parser.add_argument(
        "--glue", type=Path, default=SHARED / "data/glue/SST-2", help="folder with the files of SST-2"
    )
    parser.add_argument("--cores", type=int, help="default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--trial-steps", type=int, default=16, help="trial-steps of each process, method and round"
    )
    parser.add_argument("--quick", action="store_true", help="two rounds, small stacks")
    parser.add_argument("--bfloat16", action="store_true", help="also in bfloat16")
    parser.add_argument("--stacks", type=int, nargs="+", help="trials of each stack")
    return parser.parse_args()


def start_pool(
    options: argparse.Namespace, stacks: list[int], processes: int, threads: int
) -> list[tuple[Any, Any]]:
    """Start worker processes, each with all methods set up; returns (pipe, process) pairs."""
    # threads wait without spinning, which would slow each other down on a machine with other load
    os.environ["OMP_WAIT_POLICY"] = "passive"
    spawn = multiprocessing.get_context("spawn")
    pool = []
    for number in range(processes):
        here, there = spawn.Pipe()
        process = spawn.Process(
            target=serve,
            args=(there, options.model, options.glue, stacks, options.bfloat16, threads, number),
        )
        process.start()
        pool.append((here, process))
    return pool


def total_rate(pool: list[tuple[Any, Any]], method: str, trial_steps: int) -> tuple[float, float]:
    """Trial-steps per second of all processes of a pool together, and per second of CPU time."""
    for pipe, _ in pool:
        pipe.send((method, trial_steps))
    answers = [pipe.recv() for pipe, _ in pool]
    return sum(a[0] for a in answers), statistics.mean(a[1] for a in answers)


def serve(
    pipe: Any, model: str, glue: Path, stacks: list[int], bfloat16: bool, threads: int, number: int
) -> None:
    """Worker process: set up all methods, then run the one that is requested and send back its rates."""
    import torch

    torch.set_num_threads(threads)
    from common import load_model

    from whichlayers.data.glue import load_glue
    from whichlayers.data.tokenize import tokenize

    encoder, tokenizer = load_model(model)
    data = tokenize(load_glue("SST-2", glue), tokenizer, LENGTH)
    first = 100 * number  # processes train different trials
    methods: dict[str, tuple[int, Callable[[int], None]]] = {
        PLAIN: (1, plain_loop(encoder, data, first, fused=None, length=None)),
        FUSED: (1, plain_loop(encoder, data, first, fused=True, length=None)),
        PADDED: (1, plain_loop(encoder, data, first, fused=None, length=LENGTH)),
    }
    for trials in stacks:
        methods[stack_name(trials)] = (trials, stacked(encoder, data, first, trials))
    if bfloat16:
        methods[AUTOCAST] = (1, plain_loop(encoder, data, first, fused=True, length=None, autocast=True))
        for trials in stacks:
            step = stacked(encoder, data, first, trials, "bfloat16")
            methods[stack_name(trials, "bfloat16")] = (trials, step)
    done = dict.fromkeys(methods, 0)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        method, trial_steps = order
        trials, step = methods[method]
        steps = max(1, trial_steps // trials)
        started, worked = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step(done[method])
            done[method] += 1
        done_here = steps * trials
        pipe.send((done_here / (time.perf_counter() - started), done_here / (time.process_time() - worked)))


def plain_loop(
    encoder: Any, data: Any, seed: int, fused: bool | None, length: int | None, autocast: bool = False
) -> Callable[[int], None]:
    """A training step as usually written: a model, torch's AdamW, gradient clipping, a schedule."""
    import torch
    import torch.nn.functional as F

    from whichlayers.data.batches import epoch_order, pad, subset
    from whichlayers.models.head import build_classifier

    model = build_classifier(encoder, "mean", data.n_outputs, seed).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.0, fused=fused)
    total = SIZE // BATCH * EPOCHS
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / total)
    rows = subset(len(data.train), SIZE, seed)
    order = rows[epoch_order(SIZE, seed, 0)]

    def step(number: int) -> None:
        batch = pad(data.train, order[number * BATCH : (number + 1) * BATCH], data.pad_id, length)
        inputs = {
            name: torch.from_numpy(value)
            for name in ("input_ids", "attention_mask", "token_type_ids")
            if (value := getattr(batch, name)) is not None
        }
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(**inputs)
        loss = F.cross_entropy(logits.float(), torch.from_numpy(batch.labels))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        loss.item()

    return step


def stacked(
    encoder: Any, data: Any, seed: int, trials: int, precision: str = "float32"
) -> Callable[[int], None]:
    """A training step of a stack of `trials`."""
    import torch

    from whichlayers.engine.settings import EngineSettings
    from whichlayers.engine.stack_trainer import StackTrainer
    from whichlayers.trial import Training, Trial

    training = Training(epochs=EPOCHS, batch_size=BATCH, lr=2e-5, max_length=LENGTH, precision=precision)  # type: ignore[arg-type]
    stack = [Trial("m", "m", "SST-2", "t", SIZE, seed + i, training=training) for i in range(trials)]
    trainer = StackTrainer(stack, encoder, data, torch.device("cpu"), EngineSettings())
    trainer.model.train()
    return trainer.step_runner


def stack_name(trials: int, precision: str = "") -> str:
    name = f"whichlayers, {trials} stacked" if trials > 1 else "whichlayers, 1 trial"
    return f"{name}, {precision}" if precision else name


def print_table(rates: Rates, methods: list[str], arrangements: list[str], rounds: int) -> None:
    import torch
    import transformers

    print(f"torch {torch.__version__}, transformers {transformers.__version__}, Python", end=" ")
    print(f"{platform.python_version()}, {os.cpu_count()} cores, medians of {rounds} rounds")
    for which, unit in enumerate(("second", "second of CPU time")):
        values = {key: [rate[which] for rate in pairs] for key, pairs in rates.items()}
        median = {key: statistics.median(per_round) for key, per_round in values.items()}
        best = {
            method: max(median[method, name] for name in arrangements)
            for method in (PLAIN, FUSED, AUTOCAST, PADDED)
            if method in methods
        }
        against = {
            "plain, one process": median[PLAIN, arrangements[0]],
            "plain, its best": best[PLAIN],
            "fused, its best": best[FUSED],
            **({"autocast, its best": best[AUTOCAST]} if AUTOCAST in best else {}),
            "padded, one process": median[PADDED, arrangements[0]],
            "padded, its best": best[PADDED],
        }
        columns = ["", "arrangement", f"trial-steps per {unit} (min to max)", *(f"x {n}" for n in against)]
        print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
        for method in methods:
            for name in arrangements:
                rate, spread = median[method, name], values[method, name]
                ratios = " | ".join(f"{rate / other:.2f}" for other in against.values())
                print(
                    f"| {method} | {name} | {rate:.1f} ({min(spread):.1f} to {max(spread):.1f}) | {ratios} |"
                )


if __name__ == "__main__":
    main()
