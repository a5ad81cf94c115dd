"""One stack while it trains: the stacked model, its data, its optimiser, the step and the evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.data.metrics import score
from whichlayers.data.tokenize import TokenisedTask
from whichlayers.engine.cuda_graphs import StepRunner, start_compiler
from whichlayers.engine.dataloader import EvalFeed, TrainFeed, touched_ids
from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.init_weights import StartingValues, template_of
from whichlayers.engine.optimizer import FlatAdamW, FusedAdamW, Schedule, StackParameter
from whichlayers.engine.results import EngineSettings
from whichlayers.engine.stacked_modules import StackedEmbedding
from whichlayers.engine.stacking import Stack
from whichlayers.engine.varlen import pack_layers
from whichlayers.models.anatomy import Anatomy
from whichlayers.rng import key_of
from whichlayers.trial import Trial

EVAL_TOKENS = {"cpu": 1 << 13, "cuda": 1 << 18}  # tokens of the whole stack in one evaluation chunk


class StackRun:
    """T trials in training. `encoder` is the pretrained one, on the device, in float32; it is not changed."""

    def __init__(
        self,
        trials: Sequence[Trial],
        encoder: PreTrainedModel,
        data: TokenisedTask,
        device: torch.device,
        settings: EngineSettings,
    ):
        self.trials, self.data, self.device = list(trials), data, device
        on_cuda = device.type == "cuda"
        precision = settings.precision
        if precision == "auto":
            precision = "bfloat16" if on_cuda else "float32"
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        compiled = on_cuda if settings.compiled is None else settings.compiled

        if compiled and on_cuda:
            start_compiler()
        template = template_of(encoder, self.trials, data.n_outputs).to(device=device, dtype=dtype)
        words = "encoder." + _word_embedding_name(template.encoder)
        rows = [torch.from_numpy(r).to(device) for r in touched_ids(self.trials, data)]
        self.stack = Stack(template, len(self.trials), rows={words: rows}).to(device)
        if not on_cuda and not compiled and dtype == torch.float32:
            pack_layers(self.stack)
        if self.trials[0].training.dropout is not None:
            for module in self.stack.modules():
                if isinstance(module, StackedDropout):
                    module.p = self.trials[0].training.dropout
        table = self.stack.model.get_submodule(words)
        assert isinstance(table, StackedEmbedding)
        self.words = table

        self.feed = TrainFeed(self.trials, data, device, template.takes_token_types)
        self.start = StartingValues(encoder, self.trials)
        self.parameters = self._parameters(self.start)
        schedule = Schedule(self.trials[0].training, self.feed.steps)
        training = self.trials[0].training
        self.optimiser: FlatAdamW | FusedAdamW
        if on_cuda or dtype == torch.bfloat16:
            self.optimiser = FlatAdamW(self.parameters, training, schedule, compiled)
        else:
            self.optimiser = FusedAdamW(self.parameters, training, schedule)
        self._set_starting_values(self.start, words, rows)

        self.step_on_device = torch.zeros((), dtype=torch.int32, device=device)
        self.loss_sum = torch.zeros(len(self.trials), device=device)
        keys = [key_of(t.seed, "dropout")[0] for t in self.trials]
        self.trial_keys = torch.tensor(keys, dtype=torch.int32, device=device)
        graphs = on_cuda if settings.graphs is None else settings.graphs
        self.runner = StepRunner(self, compiled, graphs, settings.alike)
        budget = EVAL_TOKENS["cuda" if on_cuda else "cpu"]
        self.eval_feeds = {
            name: EvalFeed(split, data.pad_id, len(self.trials), device, template.takes_token_types, budget)
            for name, split in data.evals.items()
        }

    def _parameters(self, start: StartingValues) -> list[StackParameter]:
        parameters = []
        rates: dict[int | None, Tensor] = {}  # one tensor a layer: the optimiser computes with it once a step
        for name, work in self.stack.model.named_parameters():
            if not work.requires_grad:
                continue
            layer = start.layer_of(name)
            if layer not in rates:
                factors = [
                    1.0 if layer is None else dict(t.training.lr_factors).get(layer, 1.0) for t in self.trials
                ]
                peak = [t.training.lr * f for t, f in zip(self.trials, factors, strict=True)]
                rates[layer] = torch.tensor(peak, device=self.device)
            decays = [0.0 if start.is_norm_or_bias(name) else t.training.weight_decay for t in self.trials]
            if not (rates[layer] > 0).any():
                work.requires_grad_(False)  # frozen in every trial: its values are set all the same
            parameters.append(StackParameter(name, work, rates[layer], torch.tensor(decays).to(self.device)))
        return parameters

    def _set_starting_values(self, start: StartingValues, words: str, rows: list[Tensor]) -> None:
        for i, p in enumerate(self.parameters):
            if p.name == f"{words}.weight":  # never re-initialised: each trial's rows of the pretrained table
                table = start.pretrained[words.removeprefix("encoder.") + ".weight"].detach()
                values = torch.zeros(p.work.shape, device=self.device)
                for t, r in enumerate(rows):
                    values[t, : len(r)] = table[r]
            else:
                values = start.values(p.name, p.work.shape[1:], self.device)
            self.optimiser.set_values(i, values)

    def train_step(self, length: int) -> None:
        """One step of every trial, on the batch that `step_on_device` names, padded to `length`."""
        trials, batch_size = len(self.trials), self.feed.batch
        batch = self.feed.at(self.step_on_device, length)
        self.stack.set_keys(self.trial_keys, self.step_on_device, batch_size)
        logits = self.stack(**batch.inputs).float().view(trials, batch_size, -1)
        losses = (self.example_losses(logits, batch.labels) * batch.weights).sum(1) / batch.weights.sum(
            1
        )  # (T,)
        trained = [p.work for p in self.parameters if p.work.requires_grad]
        found = iter(torch.autograd.grad(losses.sum(), trained, allow_unused=True))
        grads = [next(found) if p.work.requires_grad else None for p in self.parameters]
        self.optimiser.step(grads, self.step_on_device)
        self._decay_shared_rows()
        self.loss_sum += losses.detach()
        self.step_on_device += 1

    def example_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(T, n, C) logits and (T, n) labels -> (T, n) losses."""
        if self.data.kind == "regression":
            return (logits.squeeze(-1) - labels) ** 2
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)

    @torch.no_grad()
    def _decay_shared_rows(self) -> None:
        """Weight decay reaches every row of the word table, touched or not."""
        if all(t.training.weight_decay == 0 for t in self.trials):
            return
        assert self.words.decay is not None
        table = next(p for p in self.parameters if p.work is self.words.weight)
        rate = table.lr * self.optimiser.schedule.on_device(self.step_on_device)
        self.words.decay.mul_(1 - rate * table.decay)

    @torch.no_grad()
    def evaluate(self) -> tuple[list[float], list[dict[str, float]]]:
        """Dev loss (of the main dev set) and metrics of every trial."""
        self.stack.eval()
        losses: list[float] = []
        metrics: list[dict[str, float]] = [{} for _ in self.trials]
        for name, feed in self.eval_feeds.items():
            logits = feed.unsorted(self._logits(feed))  # (T, n, C)
            labels = torch.from_numpy(feed.split.labels).expand(len(self.trials), -1)
            if not name:
                losses = self.example_losses(torch.from_numpy(logits), labels).mean(1).tolist()
            predictions = logits[..., 0] if self.data.kind == "regression" else logits.argmax(-1)
            for t in range(len(self.trials)):
                if self.data.kind != "regression" and not np.isfinite(logits[t]).all():
                    scores = {m: float("nan") for m in self.data.metrics}
                else:
                    scores = score(self.data.metrics, predictions[t], feed.split.labels)
                metrics[t] |= {f"{m}_{name}" if name else m: value for m, value in scores.items()}
        self.stack.train()
        return losses, metrics

    def _logits(self, feed: EvalFeed) -> np.ndarray:
        trials, parts = len(self.trials), []
        for chunk in feed.chunks:
            inputs = {k: v.repeat(trials, 1) for k, v in chunk.items()}  # the same rows for every trial
            self.stack.context.row_keys = None
            parts.append(self.stack(**inputs).float().view(trials, len(chunk["input_ids"]), -1))
        return torch.cat(parts, 1).cpu().numpy()

    def state(self) -> dict[str, Tensor]:
        """All that changes while the stack trains."""
        state = self.optimiser.state() | {"run/step": self.step_on_device, "run/loss_sum": self.loss_sum}
        if self.words.decay is not None:
            state["run/decay"] = self.words.decay
        return state

    def load_state(self, state: dict[str, Tensor]) -> int:
        """Go back to a saved state; returns the number of steps done."""
        done = int(state["run/step"])
        self.optimiser.load_state(state, done)
        self.step_on_device.copy_(state["run/step"])
        self.loss_sum.copy_(state["run/loss_sum"])
        if self.words.decay is not None:
            self.words.decay.copy_(state["run/decay"])
        return done


def _word_embedding_name(encoder: PreTrainedModel) -> str:
    table = encoder.get_input_embeddings()
    name = next(n for n, m in encoder.named_modules() if m is table)
    assert name in {n.rpartition(".")[0] for n in Anatomy(encoder).embedding_names()}
    return name
