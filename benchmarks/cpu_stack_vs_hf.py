"""How fast finetuning goes on a CPU: whichlayers's stack against plain Hugging Face loops, in one run.

Every rival takes the same real batches of eight SST-2 sentences, with dropout, clipping, AdamW and a linear
schedule. Rivals take turns, round after round, in two arrangements of the same cores: one process with a
thread a core, and one process a core with one thread each. What counts is trial-steps a second of the whole
machine; the tables hold medians over the rounds and their ratios. The second one counts the cores' own time,
which other work on the machine disturbs less.

    python benchmarks/cpu_stack_vs_hf.py [--quick] [--model FOLDER] [--glue FOLDER] [--rounds 7]
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
Rates = dict[tuple[str, str], list[tuple[float, float]]]  # rival, arrangement -> of each round
PLAIN, FUSED, PADDED = "HF loop, trimmed batches", "HF loop, trimmed, fused AdamW", "HF loop, padded to 128"


def main() -> None:
    options = parse()
    cores = options.cores or os.cpu_count() or 1
    stacks = [1, 4] if options.quick else [1, 4, 8, 16]
    rounds = 2 if options.quick else options.rounds
    arrangements = {f"1 process x {cores} threads": (1, cores), f"{cores} processes x 1 thread": (cores, 1)}
    rates: Rates = {}
    pools = {name: start_pool(options, stacks, *how) for name, how in arrangements.items()}
    for pipe, _ in (worker for pool in pools.values() for worker in pool):
        pipe.recv()  # it is ready
    rivals = [PLAIN, FUSED, PADDED, *(stack_name(t) for t in stacks)]
    for turn in range(-1, rounds):  # the first turn warms up
        for rival in rivals:
            for name, pool in pools.items():
                rate = whole_rate(pool, rival, options.trial_steps)
                print(
                    f"round {turn + 1}, {rival}, {name}: {rate[0]:.1f} {rate[1]:.1f}",
                    file=sys.stderr,
                    flush=True,
                )
                if turn >= 0:
                    rates.setdefault((rival, name), []).append(rate)
    for pool in pools.values():
        for pipe, process in pool:
            pipe.send(None)
            process.join()
    print_table(rates, rivals, list(arrangements), rounds)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--model", default=str(SHARED / "models/carryover-bert-tiny"))
    parser.add_argument(
        "--glue", type=Path, default=SHARED / "data/glue/SST-2", help="folder of SST-2's files"
    )
    parser.add_argument("--cores", type=int, help="default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--trial-steps", type=int, default=16, help="of each process, rival and round")
    parser.add_argument("--quick", action="store_true", help="two rounds, small stacks")
    return parser.parse_args()


def start_pool(
    options: argparse.Namespace, stacks: list[int], processes: int, threads: int
) -> list[tuple[Any, Any]]:
    """Processes that hold every rival, ready to run; each with its pipe."""
    # threads wait without spinning: on a machine with other work, spinning ones get in each other's way
    os.environ["OMP_WAIT_POLICY"] = "passive"
    spawn = multiprocessing.get_context("spawn")
    pool = []
    for number in range(processes):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(
            target=serve, args=(theirs, options.model, options.glue, stacks, threads, number)
        )
        process.start()
        pool.append((ours, process))
    return pool


def whole_rate(pool: list[tuple[Any, Any]], rival: str, trial_steps: int) -> tuple[float, float]:
    """Trial-steps a second of all processes of a pool together, and a second of one core's time."""
    for pipe, _ in pool:
        pipe.send((rival, trial_steps))
    answers = [pipe.recv() for pipe, _ in pool]
    return sum(a[0] for a in answers), statistics.mean(a[1] for a in answers)


def serve(pipe: Any, model: str, glue: Path, stacks: list[int], threads: int, number: int) -> None:
    """A process: builds every rival, then runs the one it is asked for and answers its rate."""
    import torch

    torch.set_num_threads(threads)
    from whichlayers.data.glue import load_glue
    from whichlayers.data.tokenize import tokenise
    from whichlayers.models.load import load_encoder, load_tokenizer, resolve

    files = resolve(model)
    encoder = load_encoder(files)
    data = tokenise(load_glue("SST-2", glue), load_tokenizer(files), LENGTH)
    first = 100 * number  # processes train different trials
    rivals: dict[str, tuple[int, Callable[[int], None]]] = {
        PLAIN: (1, plain_loop(encoder, data, first, fused=None, length=None)),
        FUSED: (1, plain_loop(encoder, data, first, fused=True, length=None)),
        PADDED: (1, plain_loop(encoder, data, first, fused=None, length=LENGTH)),
    }
    for trials in stacks:
        rivals[stack_name(trials)] = (trials, stacked(encoder, data, first, trials))
    done = dict.fromkeys(rivals, 0)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        rival, trial_steps = order
        trials, step = rivals[rival]
        steps = max(1, trial_steps // trials)
        started, worked = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step(done[rival])
            done[rival] += 1
        done_here = steps * trials
        pipe.send((done_here / (time.perf_counter() - started), done_here / (time.process_time() - worked)))


def plain_loop(
    encoder: Any, data: Any, seed: int, fused: bool | None, length: int | None
) -> Callable[[int], None]:
    """What one would write by hand: a model, torch's AdamW, clipping, a schedule."""
    import torch
    import torch.nn.functional as F

    from whichlayers.data.batches import epoch_order, pad, subset
    from whichlayers.models.head import build_classifier

    model = build_classifier(encoder, "mean", data.n_outputs, seed).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.0, fused=fused)
    total = SIZE // BATCH * EPOCHS
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / total)
    rows = subset(len(data.train), SIZE, seed)
    order = rows[epoch_order(SIZE, seed, 0)]

    def step(number: int) -> None:
        batch = pad(data.train, order[number * BATCH : (number + 1) * BATCH], data.pad_id, length)
        inputs = {
            name: torch.from_numpy(value)
            for name in ("input_ids", "attention_mask", "token_type_ids")
            if (value := getattr(batch, name)) is not None
        }
        loss = F.cross_entropy(model(**inputs), torch.from_numpy(batch.labels))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        loss.item()

    return step


def stacked(encoder: Any, data: Any, seed: int, trials: int) -> Callable[[int], None]:
    import torch

    from whichlayers.engine.results import EngineSettings
    from whichlayers.engine.stack_trainer import StackRun
    from whichlayers.trial import Training, Trial

    training = Training(epochs=EPOCHS, batch_size=BATCH, lr=2e-5, max_length=LENGTH)
    stack = [Trial("m", "m", "SST-2", "t", SIZE, seed + i, training=training) for i in range(trials)]
    run = StackRun(stack, encoder, data, torch.device("cpu"), EngineSettings())
    run.stack.train()
    return run.runner


def stack_name(trials: int) -> str:
    return f"whichlayers, {trials} stacked" if trials > 1 else "whichlayers, 1 trial"


def print_table(rates: Rates, rivals: list[str], arrangements: list[str], rounds: int) -> None:
    import torch
    import transformers

    print(f"torch {torch.__version__}, transformers {transformers.__version__}, Python", end=" ")
    print(f"{platform.python_version()}, {os.cpu_count()} cores, medians of {rounds} rounds")
    for which, unit in enumerate(("second", "second of a core's time")):
        values = {key: [r[which] for r in given] for key, given in rates.items()}
        middle = {key: statistics.median(given) for key, given in values.items()}
        best = {rival: max(middle[rival, name] for name in arrangements) for rival in (PLAIN, FUSED, PADDED)}
        against = {
            "plain, one process": middle[PLAIN, arrangements[0]],
            "plain, its best": best[PLAIN],
            "fused, its best": best[FUSED],
            "padded, one process": middle[PADDED, arrangements[0]],
            "padded, its best": best[PADDED],
        }
        columns = ["", "arrangement", f"trial-steps a {unit} (low to high)", *(f"x {n}" for n in against)]
        print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
        for rival in rivals:
            for name in arrangements:
                rate, spread = middle[rival, name], values[rival, name]
                shown = " | ".join(f"{rate / other:.2f}" for other in against.values())
                print(f"| {rival} | {name} | {rate:.1f} ({min(spread):.1f} to {max(spread):.1f}) | {shown} |")


if __name__ == "__main__":
    main()
