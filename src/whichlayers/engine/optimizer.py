"""AdamW for a stack: every trial has its own learning rates, weight decay and gradient clipping.

Two implementations of the same update, both tested against torch.optim.AdamW:

`FlatAdamW`, for the GPU, runs one kernel per parameter over (T, n) views, and reads everything that varies between
steps from the device. Weights are kept as the bfloat16 values that the model computes with, plus the 16 bits that are
missing to float32 (`SplitFloat`): a float32 master weight without storing the upper half twice.

`FusedAdamW`, for the CPU, uses torch's fused AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whichlayers.trial import Training

try:
    from whichlayers.engine import optimizer_kernels as kernels
except ImportError:  # no Triton: a machine without a GPU
    kernels = None  # type: ignore[assignment]

CLIP_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_


@dataclass
class StackParameter:
    """One parameter of a stacked model, and how each trial trains it."""

    name: str
    param: nn.Parameter  # (T, ...)
    lr: Tensor  # (T,) peak learning rate; 0 for a trial in which the parameter is frozen
    weight_decay: Tensor  # (T,)


class Schedule:
    """Factor of the learning rate at a step, counted from 0: linear warmup, then linear decay to 0 or constant."""

    def __init__(self, training: Training, steps: int):
        self.steps, self.warmup = steps, int(training.warmup * steps)
        self.linear = training.schedule == "linear"

    def __call__(self, step: float) -> float:
        if step < self.warmup:
            return step / self.warmup
        return (self.steps - step) / max(1, self.steps - self.warmup) if self.linear else 1.0

    def on_device(self, step: Tensor) -> Tensor:
        """The factor for a step number that is a tensor on the device."""
        at = step.float()
        after = (self.steps - at) / max(1, self.steps - self.warmup) if self.linear else torch.ones_like(at)
        return torch.where(at < self.warmup, at / self.warmup, after) if self.warmup else after


class SplitFloat:
    """A float32 tensor as its nearest bfloat16 value (`high`) and the difference of their bits (`low`, int16)."""

    @staticmethod
    def join(high: Tensor, low: Tensor) -> Tensor:
        """The float32 tensor."""
        bits = (high.view(torch.int16).to(torch.int32) << 16) + low.to(torch.int32)
        return bits.view(torch.float32)

    @staticmethod
    def split(value: Tensor) -> tuple[Tensor, Tensor]:
        """(high, low) of a float32 tensor."""
        bits = value.view(torch.int32)
        high = (bits + 0x8000) >> 16  # rounds to nearest; the difference fits into a signed 16-bit integer
        low = bits - (high << 16)
        return high.to(torch.int16).view(torch.bfloat16), low.to(torch.int16)


def adam_update(
    weight: Tensor, m: Tensor, v: Tensor, grad: Tensor, lr: Tensor, weight_decay: Tensor, scalars: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One AdamW update of a (T, n) float32 weight; returns the new weight, m and v.

    Args:
        weight: (T, n) float32.
        m: (T, n) first moment.
        v: (T, n) second moment.
        grad: (T, n) clipped gradient.
        lr: (T, 1) or (T, n) learning rate of this step.
        weight_decay: (T, 1) or (T, n).
        scalars: (5,) beta1, beta2, eps, 1 - beta1^t, sqrt(1 - beta2^t).
    """
    beta1, beta2, eps, correction1, correction2 = scalars.unbind()
    m = m + (grad - m) * (1 - beta1)
    v = v * beta2 + grad * grad * (1 - beta2)
    weight = weight - weight * (lr * weight_decay)
    weight = weight - lr * (m / correction1) / (v.sqrt() / correction2 + eps)
    return weight, m, v


def plain_step(
    param: Tensor,
    m: Tensor,
    v: Tensor,
    grad: Tensor,
    clip: Tensor,
    lr: Tensor,
    weight_decay: Tensor,
    scalars: Tensor,
) -> None:
    """AdamW update of float32 weights, in place; `clip` (T, 1) is the factor for the gradient."""
    weight, new_m, new_v = adam_update(param, m, v, grad.float() * clip, lr, weight_decay, scalars)
    param.copy_(weight)
    m.copy_(new_m)
    v.copy_(new_v)


def split_step(
    param: Tensor,
    low: Tensor,
    m: Tensor,
    v: Tensor,
    grad: Tensor,
    clip: Tensor,
    lr: Tensor,
    weight_decay: Tensor,
    scalars: Tensor,
) -> None:
    """AdamW update of a `SplitFloat` (param, low), in place; `clip` (T, 1) is the factor for the gradient."""
    old = SplitFloat.join(param, low)
    weight, new_m, new_v = adam_update(old, m, v, grad.float() * clip, lr, weight_decay, scalars)
    high, new_low = SplitFloat.split(weight)
    param.copy_(high)
    low.copy_(new_low)
    m.copy_(new_m)
    v.copy_(new_v)


def sum_of_squares(grad: Tensor) -> Tensor:
    """(T, n) -> (T, chunks) float32 partial sums of squares; here with a single chunk."""
    return torch.linalg.vector_norm(grad, dim=1, keepdim=True, dtype=torch.float32).square()


class ParameterBucket:
    """All small parameters of a stack (biases, layer norms) side by side in one (T, n) tensor.

    They are three quarters of the parameters by number and a thousandth by size: one update handles all of them.
    """

    ALIGN = 8  # elements; each parameter starts at a multiple of 16 bytes, as compiled code expects

    def __init__(self, members: Sequence[tuple[int, StackParameter]]):
        """`members`: the parameters with their indices in the list of all parameters."""
        self.indices = [i for i, _ in members]
        first = members[0][1].param
        trials, device = first.shape[0], first.device
        widths = [-(-p.param[0].numel() // self.ALIGN) * self.ALIGN for _, p in members]
        self.param = torch.zeros(trials, sum(widths), dtype=first.dtype, device=device)
        self.low = torch.zeros_like(self.param, dtype=torch.int16)
        self.m = torch.zeros_like(self.param, dtype=torch.float32)
        self.v = torch.zeros_like(self.m)
        self.lr = torch.cat(
            [p.lr[:, None].expand(-1, w) for (_, p), w in zip(members, widths, strict=True)], 1
        )
        self.weight_decay = torch.cat(
            [p.weight_decay[:, None].expand(-1, w) for (_, p), w in zip(members, widths, strict=True)], 1
        )
        self.trained = (self.lr > 0).float()
        self.spans, self.shapes, start = [], [], 0
        for (_, p), width in zip(members, widths, strict=True):
            self.spans.append(slice(start, start + p.param[0].numel()))
            self.shapes.append(p.param.shape)
            start += width
        self.widths = widths

    def view(self, tensor: Tensor, member: int) -> Tensor:
        """The part of one of the bucket's tensors that belongs to a member, in the member's shape (T, ...)."""
        return tensor[:, self.spans[member]].view(self.shapes[member])

    def gather(self, grads: Sequence[Tensor | None]) -> Tensor:
        """(T, n) gradients of all members, from the gradients of all parameters."""
        parts = []
        for i, span, width in zip(self.indices, self.spans, self.widths, strict=True):
            grad, padding = grads[i], width - (span.stop - span.start)
            if grad is None:
                parts.append(self.param.new_zeros(self.param.shape[0], width))
            else:
                parts.append(grad.flatten(1))
                if padding:
                    parts.append(grad.new_zeros(self.param.shape[0], padding))
        return torch.cat(parts, 1)


class FlatAdamW:
    """AdamW with float32 master weights and moments; a step runs entirely on the device.

    Args:
        parameters: All parameters of the stack; small ones are moved into a bucket.
        training: Betas, eps, clip_norm and bias_correction.
        schedule: Schedule of the learning rate.
        compiled: Use torch.compile for the update where no Triton kernel is available.
    """

    BUCKET_NUMEL = 1 << 14  # parameters with fewer elements per trial go into the bucket

    def __init__(
        self, parameters: Sequence[StackParameter], training: Training, schedule: Schedule, compiled: bool
    ):
        self.parameters, self.schedule = list(parameters), schedule
        self.betas, self.eps, self.clip_norm = training.betas, training.eps, training.clip_norm
        self.bias_correction = training.bias_correction
        self.split = self.parameters[0].param.dtype == torch.bfloat16
        sizes = [p.param[0].numel() for p in self.parameters]
        limit = max(self.BUCKET_NUMEL, min(sizes) + 1)  # the bucket is never empty
        self.bucket = bucket = ParameterBucket(
            [(i, p) for i, p in enumerate(self.parameters) if sizes[i] < limit]
        )
        member = {i: k for k, i in enumerate(bucket.indices)}
        self.large = [i for i in range(len(self.parameters)) if i not in member]
        self.m, self.v, self.low = [], [], []
        for i, p in enumerate(self.parameters):
            if i not in member and not bool((p.lr > 0).any()):  # frozen in every trial: no moments
                self.m.append(torch.zeros(0, device=p.param.device))
                self.v.append(self.m[-1])
                self.low.append(torch.zeros_like(p.param, dtype=torch.int16) if self.split else self.m[-1])
            elif i in member:
                p.param.data = bucket.view(bucket.param, member[i])
                self.m.append(bucket.view(bucket.m, member[i]))
                self.v.append(bucket.view(bucket.v, member[i]))
                self.low.append(bucket.view(bucket.low, member[i]))
            else:
                self.m.append(torch.zeros(p.param.shape, dtype=torch.float32, device=p.param.device))
                self.v.append(torch.zeros_like(self.m[-1]))
                self.low.append(torch.zeros_like(p.param, dtype=torch.int16) if self.split else self.m[-1])
        self.any_frozen = any(bool((p.lr == 0).any()) for p in self.parameters)
        self.update: Any = split_step if self.split else plain_step
        self.sum_of_squares: Any = sum_of_squares
        if self.split and kernels is not None and bucket.param.is_cuda:
            self.update, self.sum_of_squares = kernels.adam, kernels.sum_of_squares
        elif compiled:
            self.update = torch.compile(self.update, dynamic=True)

    @torch.no_grad()
    def set_values(self, index: int, values: Tensor) -> None:
        """Set the float32 master weights (T, ...) of a parameter."""
        p = self.parameters[index]
        if self.split:
            high, low = SplitFloat.split(values.contiguous())
            p.param.copy_(high)
            self.low[index].copy_(low)
        else:
            p.param.copy_(values)

    def values(self, index: int) -> Tensor:
        """The float32 master weights (T, ...) of a parameter."""
        param = self.parameters[index].param.detach()
        return SplitFloat.join(param, self.low[index]) if self.split else param

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor | None], step: Tensor) -> None:
        """Clip the gradients and update the weights; `step` () int on the device counts from 0."""
        bucket_grad = self.bucket.gather(grads)
        clip = self._clip_factors(grads, bucket_grad)[:, None]  # (T, 1)
        factor, t = self.schedule.on_device(step), step.float() + 1
        beta1, beta2 = self.betas
        scalars = torch.stack(
            [
                torch.full_like(t, beta1),
                torch.full_like(t, beta2),
                torch.full_like(t, self.eps),
                1 - beta1**t if self.bias_correction else torch.ones_like(t),
                (1 - beta2**t).sqrt() if self.bias_correction else torch.ones_like(t),
            ]
        )
        b = self.bucket
        tensors = (b.param, b.low, b.m, b.v) if self.split else (b.param, b.m, b.v)
        self.update(*tensors, bucket_grad, clip, b.lr * factor, b.weight_decay, scalars)
        rates: dict[int, Tensor] = {}
        for i in self.large:
            p, grad = self.parameters[i], grads[i]
            if grad is None:
                continue
            if id(p.lr) not in rates:  # the parameters of a layer share one tensor
                rates[id(p.lr)] = (p.lr * factor)[:, None]
            flat = [x.flatten(1) for x in (p.param.detach(), self.low[i], self.m[i], self.v[i])]
            if not self.split:
                flat.pop(1)
            self.update(*flat, grad.flatten(1), clip, rates[id(p.lr)], p.weight_decay[:, None], scalars)

    def _clip_factors(self, grads: Sequence[Tensor | None], bucket_grad: Tensor) -> Tensor:
        """(T,) factor for each trial's gradient."""
        if self.clip_norm <= 0:
            return torch.ones(bucket_grad.shape[0], device=bucket_grad.device)
        parts = [(bucket_grad.float().square() * self.bucket.trained).sum(1, keepdim=True)]
        for i in self.large:
            grad = grads[i]
            if grad is None:
                continue
            part = self.sum_of_squares(grad.flatten(1))
            if self.any_frozen:
                part = part * (self.parameters[i].lr > 0)[:, None]
            parts.append(part)
        norm = torch.cat(parts, 1).sum(1).sqrt()
        return (self.clip_norm / (norm + CLIP_EPS)).clamp(max=1.0)

    def state(self) -> dict[str, Tensor]:
        """Weights and moments by name."""
        state: dict[str, Tensor] = {}
        for i, p in enumerate(self.parameters):
            state[f"work/{p.name}"] = p.param.detach()
            if self.m[i].numel():
                state |= {f"m/{p.name}": self.m[i], f"v/{p.name}": self.v[i]}
            if self.split:
                state[f"low/{p.name}"] = self.low[i]
        return state

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor], steps_done: int) -> None:
        """Restore a state; `steps_done` is not used here."""
        for name, own in self.state().items():
            own.copy_(state[name])


class FusedAdamW:
    """torch.optim.AdamW(fused=True) on the stacked tensors, or on each trial's slice if learning rates differ.

    Args:
        parameters: All parameters of the stack.
        training: Betas, eps, clip_norm and bias_correction.
        schedule: Schedule of the learning rate.
    """

    def __init__(self, parameters: Sequence[StackParameter], training: Training, schedule: Schedule):
        self.parameters, self.schedule, self.clip_norm = list(parameters), schedule, training.clip_norm
        self.betas, self.eps, self.bias_correction = training.betas, training.eps, training.bias_correction
        self.slices: list[tuple[nn.Parameter, int, int | None]] = []  # (slice, parameter index, trial or all)
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for i, p in enumerate(self.parameters):
            all_equal = bool((p.lr == p.lr[0]).all() and (p.weight_decay == p.weight_decay[0]).all())
            for t in [None] if all_equal else range(len(p.lr)):
                part = nn.Parameter(p.param.detach() if t is None else p.param.detach()[t])
                lr, decay = float(p.lr[t or 0]), float(p.weight_decay[t or 0])
                if lr > 0:
                    groups.setdefault((lr, decay), []).append(part)
                    self.slices.append((part, i, t))
        self.optimizer = torch.optim.AdamW(
            [
                {"params": ps, "lr": lr, "weight_decay": wd, "peak": lr, "decay": wd}
                for (lr, wd), ps in groups.items()
            ],
            betas=training.betas,
            eps=training.eps,
            fused=True,
        )
        self.trained = [(p.lr > 0).float() for p in self.parameters]

    @torch.no_grad()
    def set_values(self, index: int, values: Tensor) -> None:
        """Set the weights (T, ...) of a parameter."""
        self.parameters[index].param.copy_(values)

    def values(self, index: int) -> Tensor:
        """The weights (T, ...) of a parameter."""
        return self.parameters[index].param.detach()

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor | None], step: Tensor) -> None:
        """Clip the gradients and update the weights; `step` () int counts from 0."""
        if self.clip_norm > 0:
            norms = [
                torch.linalg.vector_norm(g.flatten(1), dim=1) * trained
                for g, trained in zip(grads, self.trained, strict=True)
                if g is not None
            ]
            norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)  # (T,)
            clip = (self.clip_norm / (norm + CLIP_EPS)).clamp(max=1.0)
            if bool((clip != 1).any()):  # true for NaN as well
                for g in grads:
                    if g is not None:
                        g.mul_(clip.view(-1, *([1] * (g.dim() - 1))))
        # the fused kernel works on raw memory: a gradient must have the memory layout of its parameter
        grads = [None if g is None else g.contiguous() for g in grads]
        for part, i, t in self.slices:
            grad = grads[i]
            part.grad = None if grad is None else grad if t is None else grad[t]
        factor = self.schedule(int(step))
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
            if not self.bias_correction:
                self._undo_bias_correction(group, int(step) + 1)
        self.optimizer.step()

    def _undo_bias_correction(self, group: dict[str, Any], t: int) -> None:
        """Set lr, eps and weight decay such that step `t`, from 1 on, is that of AdamW without bias correction.

        torch computes lr / c1 * m / (sqrt(v) / c2 + eps) with c1 = 1 - beta1**t and c2 = sqrt(1 - beta2**t).
        """
        beta1, beta2 = self.betas
        c1, c2 = 1 - beta1**t, math.sqrt(1 - beta2**t)
        group["lr"] *= c1 / c2
        group["eps"] = self.eps / c2
        group["weight_decay"] = group["decay"] * c2 / c1  # decay is multiplied by lr

    def state(self) -> dict[str, Tensor]:
        """Weights and moments by name; a moment of a single trial has the suffix "#trial", others end in "#"."""
        state = {f"work/{p.name}": p.param.detach() for p in self.parameters}
        for part, i, t in self.slices:
            moments: dict[str, Any] = self.optimizer.state.get(part, {})
            name = f"{self.parameters[i].name}#{'' if t is None else t}"
            for key in ("exp_avg", "exp_avg_sq"):
                if key in moments:
                    state[f"{key}/{name}"] = moments[key]
        return state

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor], steps_done: int) -> None:
        """Restore a state that was saved after `steps_done` steps."""
        for p in self.parameters:
            p.param.copy_(state[f"work/{p.name}"])
        for part, i, t in self.slices:
            name = f"{self.parameters[i].name}#{'' if t is None else t}"
            if f"exp_avg/{name}" in state:
                self.optimizer.state[part] = {
                    "step": torch.tensor(float(steps_done)),
                    "exp_avg": state[f"exp_avg/{name}"].clone(),
                    "exp_avg_sq": state[f"exp_avg_sq/{name}"].clone(),
                }
