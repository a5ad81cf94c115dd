"""Training and evaluation of one stack: the stacked model with its data, optimizer and random keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.data.metrics import name_by_split, score_outputs
from whichlayers.data.tokenize import TokenizedTask
from whichlayers.engine.adapters import attach_adapters
from whichlayers.engine.compilation import should_compile, warm_up_compiler
from whichlayers.engine.cuda_graphs import StepRunner
from whichlayers.engine.dataloader import (
    EvalChunk,
    EvalDataLoader,
    TrainDataLoader,
    round_up,
    used_token_ids,
)
from whichlayers.engine.devices import select_device
from whichlayers.engine.freezing import lr_factor, set_dropout, shared_parameters
from whichlayers.engine.init_weights import InitialWeights, build_template
from whichlayers.engine.optimizer import FlatAdamW, FusedAdamW, Schedule, StackParameter
from whichlayers.engine.packing import pack_layers
from whichlayers.engine.prefix_cache import PrefixCache, constant_prefix
from whichlayers.engine.recompute import is_large, recompute_layers
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stacked_modules import StackedEmbedding
from whichlayers.engine.stacking import StackedModel
from whichlayers.models.head import Classifier
from whichlayers.models.load import max_input_length
from whichlayers.models.structure import ModelStructure
from whichlayers.rng import key_of
from whichlayers.trial import Training, Trial

ROW_MULTIPLE = 1024  # of the rows of the word embeddings that trials train, where they are compiled
EVAL_TOKENS = {"cpu": 1 << 13, "cuda": 1 << 18}  # tokens of the whole stack in one evaluation chunk


class StackTrainer:
    """Trains T trials as one stacked model, which starts in training mode.

    Args:
        trials: The trials; they must agree in `finetune.stack_key`. They are followed by copies of the last one for
            unused slots of `settings`.
        encoder: The pretrained encoder in float32; it is moved to `device`, but not modified.
        data: The tokenized task.
        device: Where to train.
        settings: How to run.

    Attributes:
        model: The stacked model.
        shared_names: Names of the parameters that no trial trains and that are the same in all trials.
        parameters: All parameters with a trial axis, with their learning rates.
        word_embeddings: The word embeddings; None if they are frozen and the same in all trials.
        packed: Whether layers compute on packed tokens, nothing for padding.
        size_in_tokens: Whether the size of a step is its number of tokens per trial, as on a GPU if the stack is
            packed, else the length that sequences are padded to.
        step_on_device: () int32 number of the next training step, from 0 on.
        loss_sum: (T,) sum of the losses of the steps since the start of the epoch.
        trial_keys: (T,) int32 from which the dropout masks of each trial are computed.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        encoder: PreTrainedModel,
        data: TokenizedTask,
        device: torch.device,
        settings: EngineSettings,
    ):
        self.trials, self.data, self.device = settings.pad_trials(trials), data, device
        select_device(device)
        encoder = encoder.to(device)  # type: ignore[arg-type]
        on_cuda = device.type == "cuda"
        dtype, linear_dtype = choose_dtypes(self.trials[0].training, settings, on_cuda)
        template = build_template(encoder, self.trials, data.n_outputs).to(device=device, dtype=dtype)
        embedding_name = "encoder." + _word_embedding_name(template.encoder)
        rows = [torch.from_numpy(r).to(device) for r in used_token_ids(self.trials, data)]
        self.initial_weights = InitialWeights(encoder, self.trials)
        self._build_model(template, {embedding_name: rows}, dtype, linear_dtype, settings)
        embedding = self.model.module.get_submodule(embedding_name)
        self.word_embeddings = embedding if isinstance(embedding, StackedEmbedding) else None
        family = self.initial_weights.structure.family
        self._build_data_loaders(template.takes_token_types, max_input_length(family, encoder.config))
        compiled = should_compile(settings, self.train_loader, len(self.trials), encoder, on_cuda)
        if compiled and on_cuda:
            warm_up_compiler()
        self._build_optimizer(dtype, compiled)
        self._initialize(embedding_name, rows)
        self.prefix_cache = None
        if settings.cache_prefix and (
            prefix := constant_prefix(self.model, self.initial_weights, self.trials)
        ):
            self.prefix_cache = PrefixCache.build(self.model, self.train_loader, prefix)

        self.step_on_device = torch.zeros((), dtype=torch.int32, device=device)
        self.loss_sum = torch.zeros(len(self.trials), device=device)
        keys = [key_of(t.seed_of("dropout"), "dropout")[0] for t in self.trials]
        self.trial_keys = torch.tensor(keys, dtype=torch.int32, device=device)
        self.step_runner = StepRunner(self, compiled, settings.uses_graphs(on_cuda), settings.similar_stacks)
        if is_large(encoder) if settings.recompute is None else settings.recompute:
            recompute_layers(self.model)
        self.model.train()

    def _build_model(
        self,
        template: Classifier,
        rows: dict[str, list[Tensor]],
        dtype: torch.dtype,
        linear_dtype: torch.dtype | None,
        settings: EngineSettings,
    ) -> None:
        """Stack the template, with adapters and dropout; `rows` as in `StackedModel`, types as in `choose_dtypes`."""
        on_cuda = self.device.type == "cuda"
        names = [name for name, _ in template.named_parameters()]
        self.shared_names = shared_parameters(self.initial_weights, self.trials, names)
        # the number of rows depends on the seeds; stacks with the same shape use the same compiled code
        row_multiple = ROW_MULTIPLE if on_cuda or settings.compiled else 1
        self.model = StackedModel(template, len(self.trials), rows, self.shared_names, row_multiple).to(
            self.device
        )
        if linear_dtype is not None:
            self.model.round_linear_layers(linear_dtype)
        attach_adapters(self.model, template.encoder, self.trials)
        self.packed = False
        if settings.packed and (on_cuda or (not settings.compiled and dtype == torch.float32)):
            self.packed = pack_layers(self.model)
        self.size_in_tokens = (
            self.packed and on_cuda
        )  # on the CPU, the mask of each batch determines the tokens
        set_dropout(self.model, self.initial_weights, self.trials)

    def _build_data_loaders(self, with_token_types: bool, max_length: int | None) -> None:
        """Put the training examples and the dev sets on the device; arguments as in `TrainDataLoader`."""
        data, device = self.data, self.device
        self.train_loader = TrainDataLoader(self.trials, data, device, with_token_types, max_length)
        max_tokens = EVAL_TOKENS[device.type]
        self.eval_loaders = {
            name: EvalDataLoader(split, data.pad_id, len(self.trials), device, with_token_types, max_tokens)
            for name, split in data.evals.items()
        }

    def _build_optimizer(self, dtype: torch.dtype, compiled: bool) -> None:
        """Create the optimizer for all parameters with a trial axis."""
        training = self.trials[0].training
        self.parameters = self._stack_parameters()
        schedule = Schedule(training, self.train_loader.steps)
        self.optimizer: FlatAdamW | FusedAdamW
        if self.device.type == "cuda" or dtype == torch.bfloat16:
            self.optimizer = FlatAdamW(self.parameters, training, schedule, compiled)
        else:
            self.optimizer = FusedAdamW(self.parameters, training, schedule)

    def _stack_parameters(self) -> list[StackParameter]:
        """All parameters with a trial axis, with each trial's learning rate and weight decay."""
        parameters = []
        # (T,) learning rates: one tensor for equal ones, so that the optimizer scales it once per step
        rates: dict[tuple[float, ...], Tensor] = {}
        for name, param in self.model.module.named_parameters():
            if not param.requires_grad:
                continue
            factors = [lr_factor(self.initial_weights, trial, name) for trial in self.trials]
            peak = tuple(t.training.lr * f for t, f in zip(self.trials, factors, strict=True))
            if peak not in rates:
                rates[peak] = torch.tensor(peak, device=self.device)
            decays = [
                0.0 if self.initial_weights.is_norm_or_bias(name) else t.training.weight_decay
                for t in self.trials
            ]
            if not any(peak):
                param.requires_grad_(False)  # frozen in every trial; it is still initialized
            parameters.append(StackParameter(name, param, rates[peak], torch.tensor(decays).to(self.device)))
        return parameters

    def _initialize(self, embedding_name: str, rows: list[Tensor]) -> None:
        """Write every trial's initial weights; `rows` are the rows of the word embeddings each trial trains."""
        initial = self.initial_weights
        for i, p in enumerate(self.parameters):
            if p.name == f"{embedding_name}.weight":  # never re-initialized
                table = initial.pretrained[embedding_name.removeprefix("encoder.") + ".weight"].detach()
                values = torch.zeros(p.param.shape, device=self.device)
                for t, r in enumerate(rows):
                    values[t, : len(r)] = table[r]
            else:
                values = initial.values(p.name, p.param.shape[1:], self.device)
            self.optimizer.set_values(i, values)
        with torch.no_grad():
            for name, param in self.model.module.named_parameters():
                if name in self.shared_names and not self.model.has_trial_axis(name):
                    source = initial.common_source(name)
                    assert source is not None
                    param.copy_(source)

    def train_step(self, size: int) -> None:
        """One training step of every trial on batch number `step_on_device`.

        Args:
            size: Tokens of a trial with `size_in_tokens`, else the length to which sequences are padded.
        """
        trials, batch_size = len(self.trials), self.train_loader.batch_size
        length = self.train_loader.input_ids.shape[1] if self.size_in_tokens else size
        self.model.context.packed_tokens = size if self.size_in_tokens else None
        batch = self.train_loader.batch(self.step_on_device, length)
        self.model.set_dropout_keys(self.trial_keys, self.step_on_device, batch_size)
        if self.prefix_cache is not None:
            self.model.context.prefix = self.prefix_cache.states(batch.rows, length)
        logits = self.model(**batch.inputs).float().view(trials, batch_size, -1)
        weighted = self.example_losses(logits, batch.labels) * batch.weights
        losses = weighted.sum(1) / batch.weights.sum(1)  # (T,)
        trained = [p.param for p in self.parameters if p.param.requires_grad]
        trained_grads = iter(torch.autograd.grad(losses.sum(), trained, allow_unused=True))
        grads = [next(trained_grads) if p.param.requires_grad else None for p in self.parameters]
        self.optimizer.step(grads, self.step_on_device)
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
        """Apply weight decay to the rows of the word embeddings that no trial trains, too."""
        if self.word_embeddings is None or all(t.training.weight_decay == 0 for t in self.trials):
            return
        assert self.word_embeddings.decay is not None
        table = next(p for p in self.parameters if p.param is self.word_embeddings.weight)
        lr = table.lr * self.optimizer.schedule.on_device(self.step_on_device)
        self.word_embeddings.decay.mul_(1 - lr * table.weight_decay)

    @torch.no_grad()
    def evaluate(self) -> tuple[list[float], list[dict[str, float]]]:
        """Evaluate every trial on all dev sets.

        Returns:
            The loss of every trial on the main dev set, and the metrics of every trial on all of them.
        """
        self.model.eval()
        losses: list[float] = []
        metrics: list[dict[str, float]] = [{} for _ in self.trials]
        for name, loader in self.eval_loaders.items():
            logits = loader.unsort(self.compute_logits(loader.chunks))  # (T, n, C)
            labels = torch.from_numpy(loader.split.labels).expand(len(self.trials), -1)
            if not name:
                losses = self.example_losses(torch.from_numpy(logits), labels).mean(1).tolist()
            for t in range(len(self.trials)):
                scores = score_outputs(self.data.metrics, self.data.kind, logits[t], loader.split.labels)
                metrics[t] |= name_by_split(scores, name)
        self.model.train()
        return losses, metrics

    def compute_logits(self, chunks: Sequence[EvalChunk]) -> np.ndarray:
        """(T, n, C) logits of every trial for the n rows of all chunks; the same rows for every trial."""
        trials, parts = len(self.trials), []
        for chunk in chunks:
            inputs = {k: v.repeat(trials, 1) for k, v in chunk.inputs.items()}
            self.model.context.row_keys = self.model.context.prefix = None
            self.model.context.packed_tokens = round_up(chunk.tokens) if self.size_in_tokens else None
            parts.append(self.model(**inputs).float().view(trials, len(chunk.inputs["input_ids"]), -1))
        return torch.cat(parts, 1).cpu().numpy()

    def trained_parameters(self, trial: int) -> int:
        """Number of parameters that a trial trains, with all word embeddings if it trains those of its examples."""
        total, embeddings = 0, self.word_embeddings
        for p in self.parameters:
            if p.lr[trial] == 0:
                continue
            if embeddings is not None and p.param is embeddings.weight:
                total += embeddings.num_embeddings * embeddings.embedding_dim
            else:
                total += p.param[trial].numel()
        return total

    def state(self) -> dict[str, Tensor]:
        """Everything that changes during training: weights, moments, step number, losses. By name, as checkpointed."""
        state = self.optimizer.state() | {"run/step": self.step_on_device, "run/loss_sum": self.loss_sum}
        if self.word_embeddings is not None and self.word_embeddings.decay is not None:
            state["run/decay"] = self.word_embeddings.decay
        return state

    def load_state(self, state: dict[str, Tensor]) -> int:
        """Restore a saved state; returns the number of completed steps."""
        done = int(state["run/step"])
        self.optimizer.load_state(state, done)
        self.step_on_device.copy_(state["run/step"])
        self.loss_sum.copy_(state["run/loss_sum"])
        if self.word_embeddings is not None and self.word_embeddings.decay is not None:
            self.word_embeddings.decay.copy_(state["run/decay"])
        return done


def choose_dtypes(
    training: Training, settings: EngineSettings, on_cuda: bool
) -> tuple[torch.dtype, torch.dtype | None]:
    """The types that a stack computes with, by the precision of its training, of the settings, or of the device.

    Returns:
        The type of weights and activations, and the type to which linear layers round their operands; None: they do
        not round them.
    """
    precision = settings.precision if training.precision == "auto" else training.precision
    if precision == "float32" or (precision == "auto" and not on_cuda):
        return torch.float32, None
    keep_bfloat16 = on_cuda if settings.bfloat16_weights is None else settings.bfloat16_weights
    return (torch.bfloat16, None) if keep_bfloat16 else (torch.float32, torch.bfloat16)


def _word_embedding_name(encoder: PreTrainedModel) -> str:
    """Module name of the encoder's word embeddings."""
    table = encoder.get_input_embeddings()
    name = next(n for n, m in encoder.named_modules() if m is table)
    assert name in {n.rpartition(".")[0] for n in ModelStructure(encoder).embedding_names()}
    return name
