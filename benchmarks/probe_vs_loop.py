"""Cost of probing every layer: one pass of the frozen encoder, against a loop that runs it at every step.

The usual loop (and the code published with Tamkin et al. 2020) trains one probe after another and runs the encoder, up
to the probed layer, in every epoch. whichlayers runs the encoder once over all examples and trains all probes on the
stored hidden states. Both use the same subsets, orders, initial weights and early stopping, so that they stop at the
same epochs with the same scores.

Encoder work is counted in examples that go through one encoder layer. whichlayers is timed in full; the loop is timed
for a few epochs of every layer, multiplied by the number of epochs of each probe.

    python benchmarks/probe_vs_loop.py [--model NAME] [--task NAME] [--size 400] [--trials 8] [--epochs 2]
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import statistics

import numpy as np
import torch
from common import Seconds, load_model, make_parser
from torch.nn import functional as F

from whichlayers import rng
from whichlayers.data.batches import epoch_order, pad, select_rows, subset
from whichlayers.data.load_task import load_task
from whichlayers.data.metrics import score
from whichlayers.data.tokenize import TokenizedSplit, TokenizedTask, tokenize
from whichlayers.models.head import build_classifier
from whichlayers.models.structure import ModelStructure
from whichlayers.models.surgery import reorder
from whichlayers.probes.evaluation import predict
from whichlayers.probes.extract import extract_sentences
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.probe_specs import FittedProbe, held_out_count
from whichlayers.probes.run_sentence_probes import ProbeJob, fit_sentence_probes
from whichlayers.text import counted
from whichlayers.trial import Probe


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    encoder, tokenizer = load_model(options.model)
    data = tokenize(load_task(options.task), tokenizer, 128)
    data = dataclasses.replace(
        data,
        train=select_rows(data.train, subset(len(data.train), min(options.size, len(data.train)), 0)),
        evals={"": select_rows(data.evals[""], np.arange(len(data.evals[""]))[: options.dev])},
    )
    depth, size = ModelStructure(encoder).depth, len(data.train)
    probe = Probe(1, max_epochs=40, patience=options.patience, lr=options.lr)
    rows = [subset(size, size, seed) for seed in range(options.trials)]  # all examples, as in the paper
    jobs = [
        ProbeJob(dataclasses.replace(probe, layer=layer), seed, rows[seed])
        for layer in range(1, depth + 1)
        for seed in range(options.trials)
    ]
    fitted, accuracies, encoded, ours = probe_once(encoder, data, jobs)
    held = held_out_count(size, probe.held_out)
    dev = len(data.evals[""])
    work = encoded * depth
    loop_work = sum(
        job.probe.layer * (f.epochs_run * size + dev) for job, f in zip(jobs, fitted, strict=True)
    )
    epoch_seconds = {
        layer: time_epoch(encoder, data, jobs, layer, options.epochs) for layer in range(1, depth + 1)
    }
    loop = [
        sum(
            getattr(epoch_seconds[job.probe.layer], kind) * f.epochs_run
            for job, f in zip(jobs, fitted, strict=True)
        )
        for kind in ("wall", "cores")
    ]
    last = len(jobs) - options.trials  # the last layer with the first seed; run in full by the loop
    epoch, accuracy = run_full_loop(encoder, data, jobs[last])
    same = epoch == fitted[last].epoch and abs(accuracy - accuracies[last]) < 1e-9
    epochs = [f.epochs_run for f in fitted]
    print(f"# Probing: one encoder pass against a loop\n\n{describe(options, depth, size, held, dev)}\n")
    print(
        f"{len(jobs)} probes ({depth} layers x {options.trials} trials) ran {min(epochs)} to {max(epochs)} epochs, "
        f"{statistics.mean(epochs):.1f} on average.\n"
    )
    print("| | whichlayers | the usual loop | ratio |\n|---|---|---|---|")
    print(f"| examples through one encoder layer | {work:,} | {loop_work:,} | **{loop_work / work:,.0f}x** |")
    print(f"| wall time, s | {ours.wall:,.1f} | {loop[0]:,.0f} | {loop[0] / ours.wall:,.0f}x |")
    print(f"| CPU time, s | {ours.cores:,.1f} | {loop[1]:,.0f} | {loop[1] / ours.cores:,.0f}x |")
    print(
        f"\nThe loop was timed for {counted(options.epochs, 'epoch')} of each layer, "
        f"multiplied by the number of epochs of each probe. "
        f"One probe (layer {depth}, first trial) was run in full by the loop: best epoch {epoch}, "
        f"accuracy {accuracy:.4f}; "
        f"whichlayers: best epoch {fitted[last].epoch}, accuracy {accuracies[last]:.4f}"
        + ("." if same else " (NOT the same).")
    )
    if loop_work < 100 * work:
        raise SystemExit("the loop does less than 100 times the encoder work of whichlayers")


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--task", default="builtin:sentiment")
    parser.add_argument("--size", type=int, default=400, help="number of training examples")
    parser.add_argument("--dev", type=int, default=200, help="number of dev examples")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument(
        "--epochs", type=int, default=2, help="epochs of each layer for which the loop is timed"
    )
    parser.add_argument("--patience", type=int, default=Probe(0).patience)
    parser.add_argument("--lr", type=float, default=Probe(0).lr)
    return parser.parse_args()


def describe(options: argparse.Namespace, depth: int, size: int, held: int, dev: int) -> str:
    return (
        f"{options.model} ({depth} layers) on {options.task}: {size:,} training examples ({held} of them held out), "
        f"{dev:,} dev examples; batch size 8, at most 40 epochs. {platform.machine()}, {options.threads} threads, "
        f"torch {torch.__version__}. On a machine with other load, compare ratios, not seconds."
    )


def probe_once(
    encoder, data: TokenizedTask, jobs: list[ProbeJob]
) -> tuple[list[FittedProbe], list[float], int, Seconds]:
    """Extract once and fit all probes; returns probes, dev accuracies, examples encoded, and time."""
    start = Seconds.now()
    train, dev = data.train, data.evals[""]
    encoded: list[int] = []
    states = [
        HiddenStates(extract_sentences(encoder, split, data.pad_id, on_rows=encoded.append))
        for split in (train, dev)
    ]
    fitted = fit_sentence_probes(states[0], train.labels, jobs, data.n_outputs)
    outputs = predict(states[1], fitted)
    accuracies = [score(["accuracy"], o.argmax(-1).numpy(), dev.labels)["accuracy"] for o in outputs]
    return fitted, accuracies, sum(encoded), Seconds.now() - start


class Loop:
    """One probe as usually trained: a linear classifier on a frozen encoder, which runs at every step."""

    def __init__(self, encoder, data: TokenizedTask, job: ProbeJob):
        self.data, self.job = data, job
        self.model = build_classifier(
            reorder(encoder, range(1, job.probe.layer + 1)), "mean", data.n_outputs, job.seed
        ).eval()
        self.model.encoder.requires_grad_(False)
        order = rng.permutation(job.seed, "held out", len(job.rows))
        held = held_out_count(len(job.rows), job.probe.held_out)
        self.held, self.rows = job.rows[order[:held]], job.rows[np.sort(order[held:])]
        self.optimizer = torch.optim.AdamW(
            self.model.classifier.parameters(), lr=job.probe.lr, weight_decay=0.0
        )

    def logits(self, split: TokenizedSplit, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        batch = pad(split, rows, self.data.pad_id)
        types = None if batch.token_type_ids is None else torch.from_numpy(batch.token_type_ids)
        inputs = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask), types
        return self.model(*inputs), torch.from_numpy(batch.labels)

    def epoch(self, number: int) -> float:
        """Train for one epoch; returns the held-out loss."""
        batch = self.job.probe.batch_size
        rows = self.rows[epoch_order(len(self.rows), self.job.seed, number - 1)]
        for start in range(0, len(rows), batch):
            self.optimizer.zero_grad()
            F.cross_entropy(*self.logits(self.data.train, rows[start : start + batch])).backward()
            self.optimizer.step()
        with torch.no_grad():
            return float(F.cross_entropy(*self.logits(self.data.train, self.held)))

    @torch.no_grad()
    def accuracy(self) -> float:
        dev = self.data.evals[""]
        parts = np.array_split(np.arange(len(dev)), max(1, len(dev) // 64))
        predictions = np.concatenate([self.logits(dev, part)[0].argmax(-1).numpy() for part in parts])
        return score(["accuracy"], predictions, dev.labels)["accuracy"]


def time_epoch(encoder, data: TokenizedTask, jobs: list[ProbeJob], layer: int, epochs: int) -> Seconds:
    loop = Loop(encoder, data, next(job for job in jobs if job.probe.layer == layer))
    loop.logits(data.train, loop.rows[:8])  # warm-up
    times = []
    for number in range(1, epochs + 1):
        start = Seconds.now()
        loop.epoch(number)
        times.append(Seconds.now() - start)
    return Seconds(statistics.median(t.wall for t in times), statistics.median(t.cores for t in times))


def run_full_loop(encoder, data: TokenizedTask, job: ProbeJob) -> tuple[int, float]:
    """Train with early stopping; returns the best epoch and its dev accuracy."""
    loop, best, best_epoch, accuracy = Loop(encoder, data, job), float("inf"), 0, 0.0
    for number in range(1, job.probe.max_epochs + 1):
        loss = loop.epoch(number)
        if loss < best:
            best, best_epoch, accuracy = loss, number, loop.accuracy()
        elif number - best_epoch >= job.probe.patience:
            break
    return best_epoch, accuracy


if __name__ == "__main__":
    main()
