"""Reference training loop: one trial with a plain Hugging Face model and torch.optim.AdamW."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForSequenceClassification

from whichlayers import rng
from whichlayers.data.batches import epoch_order, pad, subset
from whichlayers.models.head import CLASSIFIER_STD, build_classifier
from whichlayers.models.structure import ModelStructure
from whichlayers.models.surgery import apply_surgery
from whichlayers.trial import Trial


class UncorrectedAdamW(torch.optim.Optimizer):
    """AdamW without bias correction, written as the textbook has it."""

    def __init__(self, groups, betas, eps):
        super().__init__(groups, {"betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["m"] = beta1 * state["m"] + (1 - beta1) * p.grad
                state["v"] = beta2 * state["v"] + (1 - beta2) * p.grad**2
                p -= lr * group["weight_decay"] * p
                p -= lr * state["m"] / (state["v"].sqrt() + group["eps"])


class HuggingFaceClassifier(nn.Module):
    """Hugging Face's own ...ForSequenceClassification of a decoder, with the parameter names of our `Classifier`."""

    def __init__(self, encoder, n_outputs: int, seed: int):
        super().__init__()
        config = copy.deepcopy(encoder.config)
        config.num_labels, config.use_cache = n_outputs, False
        whole = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
        whole.base_model.load_state_dict(encoder.state_dict())
        head = rng.normal(seed, "classifier.weight", whole.score.weight.shape, CLASSIFIER_STD)
        whole.score.load_state_dict({"weight": head})  # fails if there is a bias
        self.encoder, self.classifier = whole.base_model, whole.score
        self.whole = (whole,)  # in a tuple: its parameters are those above

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        return self.whole[0](input_ids=input_ids, attention_mask=attention_mask).logits


def plain_finetune(
    trial: Trial, encoder, data, max_steps: int | None = None, build: Callable[..., nn.Module] | None = None
):
    """Finetune one trial; returns the classifier and the loss of every step.

    `build`: makes the classifier of an encoder, a number of outputs and a seed. Default: our `Classifier`.
    """
    t = trial.training
    operated = apply_surgery(encoder, trial.surgery, trial.seed_of("init"))
    model = (build or (lambda *args: build_classifier(args[0], trial.head, *args[1:])))(
        operated, data.n_outputs, trial.seed_of("head")
    )
    model.train()
    structure = ModelStructure(model.encoder)
    norms = {f"encoder.{n}" for n in structure.layer_norm_names()}
    groups = []
    for name, p in model.named_parameters():
        layer = structure.layer_of(name.removeprefix("encoder.")) if name.startswith("encoder.") else None
        factors = dict(t.lr_factors)
        lr = t.lr * factors.get(layer, 1.0)
        if name.startswith("encoder.") and layer is None and "pooler" not in name:
            # relative positions, with the embeddings
            if "rel" in name or "encoder.encoder.LayerNorm" in name:
                lr = t.lr * factors.get(0, 1.0)
            elif factors.get(structure.depth) == 0:  # a final norm
                lr = 0.0
        if name.startswith("encoder.") and "pooler" not in name:
            is_kind = {"all": True, "norms": name in norms, "biases": name.endswith("bias")}
            lr *= is_kind[t.parameters]
        if lr == 0:
            p.requires_grad_(False)
            continue
        decays = not (name in norms or name.endswith("bias"))
        groups.append({"params": [p], "lr": lr, "weight_decay": t.weight_decay if decays else 0.0})
    optimizer = (
        torch.optim.AdamW(groups, betas=t.betas, eps=t.eps)
        if t.bias_correction
        else UncorrectedAdamW(groups, t.betas, t.eps)
    )
    per_epoch = math.ceil(trial.train_size / t.batch_size)
    total = per_epoch * t.epochs
    warmup = int(t.warmup * total)

    def factor(step: int) -> float:
        if step < warmup:
            return step / warmup
        return (total - step) / max(1, total - warmup) if t.schedule == "linear" else 1.0

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    rows = subset(len(data.train), trial.train_size, trial.seed_of("subset"))
    losses = []
    for epoch in range(t.epochs):
        order = rows[epoch_order(len(rows), trial.seed_of("order"), epoch)]
        for start in range(0, len(order), t.batch_size):
            if max_steps is not None and len(losses) == max_steps:
                return model, losses
            b = pad(data.train, order[start : start + t.batch_size], data.pad_id)
            inputs = {
                "input_ids": torch.from_numpy(b.input_ids),
                "attention_mask": torch.from_numpy(b.attention_mask),
            }
            if b.token_type_ids is not None:
                inputs["token_type_ids"] = torch.from_numpy(b.token_type_ids)
            logits, labels = model(**inputs), torch.from_numpy(b.labels)
            loss = (
                F.mse_loss(logits[:, 0], labels)
                if data.kind == "regression"
                else F.cross_entropy(logits, labels)
            )
            optimizer.zero_grad()
            loss.backward()
            if t.clip_norm:
                trained = [p for p in model.parameters() if p.requires_grad]
                torch.nn.utils.clip_grad_norm_(trained, t.clip_norm)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    return model, losses
