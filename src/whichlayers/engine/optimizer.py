"""AdamW for a stack: each trial with its own rate, its own rates by layer, its own clipping.

Two implementations of the same update, both checked against torch.optim.AdamW:
`FlatAdamW` for the GPU: one kernel per parameter over (T, n) views, all numbers that vary between steps read
from the device. Weights are kept as a bfloat16 copy that the model computes with plus the 16 bits
that are missing to float32 (`SplitFloat`): the float32 master weight without storing the upper half twice.
`FusedAdamW` for the CPU: torch's own fused AdamW.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whichlayers.trial import Training

try:
    from whichlayers.engine import kernels
except ImportError:  # no Triton: a machine without a GPU
    kernels = None  # type: ignore[assignment]

CLIP_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_


@dataclass
class StackParameter:
    """One parameter of the stack and how each trial trains it."""

    name: str
    work: nn.Parameter  # (T, ...) what the model computes with
    lr: Tensor  # (T,) peak rate; 0 where the trial has this layer frozen
    decay: Tensor  # (T,) weight decay


class Schedule:
    """The factor on every rate at a step, from 0 on: linear warm-up, then linear decay to 0 or constant."""

    def __init__(self, training: Training, steps: int):
        self.steps, self.warmup = steps, int(training.warmup * steps)
        self.linear = training.schedule == "linear"

    def __call__(self, step: float) -> float:
        if step < self.warmup:
            return step / self.warmup
        return (self.steps - step) / max(1, self.steps - self.warmup) if self.linear else 1.0

    def on_device(self, step: Tensor) -> Tensor:
        """The same for a step that lies on the device."""
        at = step.float()
        after = (self.steps - at) / max(1, self.steps - self.warmup) if self.linear else torch.ones_like(at)
        return torch.where(at < self.warmup, at / self.warmup, after) if self.warmup else after


class SplitFloat:
    """A float32 tensor kept as its nearest bfloat16 (`high`) and the 16 bits between them (`low`, int16)."""

    @staticmethod
    def join(high: Tensor, low: Tensor) -> Tensor:
        bits = (high.view(torch.int16).to(torch.int32) << 16) + low.to(torch.int32)
        return bits.view(torch.float32)

    @staticmethod
    def split(value: Tensor) -> tuple[Tensor, Tensor]:
        bits = value.view(torch.int32)
        high = (bits + 0x8000) >> 16  # rounds to the nearest; what is left fits 16 bits with a sign
        low = bits - (high << 16)
        return high.to(torch.int16).view(torch.bfloat16), low.to(torch.int16)


def adam_update(
    weight: Tensor, m: Tensor, v: Tensor, grad: Tensor, rate: Tensor, decay: Tensor, scalars: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One AdamW update of a (T, n) float32 weight.

    rate (T, 1) holds this step's learning rate, decay (T, 1) the weight decay; scalars: beta1, beta2, eps,
    1 - beta1^t, sqrt(1 - beta2^t).
    """
    beta1, beta2, eps, correction1, correction2 = scalars.unbind()
    m = m + (grad - m) * (1 - beta1)
    v = v * beta2 + grad * grad * (1 - beta2)
    weight = weight - weight * (rate * decay)
    weight = weight - rate * (m / correction1) / (v.sqrt() / correction2 + eps)
    return weight, m, v


def plain_step(
    work: Tensor,
    m: Tensor,
    v: Tensor,
    grad: Tensor,
    clip: Tensor,
    rate: Tensor,
    decay: Tensor,
    scalars: Tensor,
) -> None:
    weight, new_m, new_v = adam_update(work, m, v, grad.float() * clip, rate, decay, scalars)
    work.copy_(weight)
    m.copy_(new_m)
    v.copy_(new_v)


def split_step(
    work: Tensor,
    low: Tensor,
    m: Tensor,
    v: Tensor,
    grad: Tensor,
    clip: Tensor,
    rate: Tensor,
    decay: Tensor,
    scalars: Tensor,
) -> None:
    old = SplitFloat.join(work, low)
    weight, new_m, new_v = adam_update(old, m, v, grad.float() * clip, rate, decay, scalars)
    high, new_low = SplitFloat.split(weight)
    work.copy_(high)
    low.copy_(new_low)
    m.copy_(new_m)
    v.copy_(new_v)


def squares(grad: Tensor) -> Tensor:
    """(T, n) -> (T, some) float32 parts that add up to each trial's sum of squares."""
    return torch.linalg.vector_norm(grad, dim=1, keepdim=True, dtype=torch.float32).square()


class Pack:
    """All small parameters of a stack (biases, layer norms) side by side in one (T, n) tensor.

    They are three quarters of all parameters by number and a thousandth by size: one update serves them all.
    """

    ALIGN = 8  # elements: each parameter starts at a multiple of 16 bytes, as compiled code expects

    def __init__(self, members: Sequence[tuple[int, StackParameter]]):
        self.indices = [i for i, _ in members]
        first = members[0][1].work
        trials, device = first.shape[0], first.device
        widths = [-(-p.work[0].numel() // self.ALIGN) * self.ALIGN for _, p in members]
        self.work = torch.zeros(trials, sum(widths), dtype=first.dtype, device=device)
        self.low = torch.zeros_like(self.work, dtype=torch.int16)
        self.m = torch.zeros_like(self.work, dtype=torch.float32)
        self.v = torch.zeros_like(self.m)
        self.lr = torch.cat(
            [p.lr[:, None].expand(-1, w) for (_, p), w in zip(members, widths, strict=True)], 1
        )
        self.decay = torch.cat(
            [p.decay[:, None].expand(-1, w) for (_, p), w in zip(members, widths, strict=True)], 1
        )
        self.live = (self.lr > 0).float()
        self.spans, self.shapes, start = [], [], 0
        for (_, p), width in zip(members, widths, strict=True):
            self.spans.append(slice(start, start + p.work[0].numel()))
            self.shapes.append(p.work.shape)
            start += width
        self.widths = widths

    def view(self, of: Tensor, member: int) -> Tensor:
        """A member's part of one of the packed tensors, in the member's own shape (T, ...)."""
        return of[:, self.spans[member]].view(self.shapes[member])

    def gather(self, grads: Sequence[Tensor | None]) -> Tensor:
        parts = []
        for i, span, width in zip(self.indices, self.spans, self.widths, strict=True):
            grad, filling = grads[i], width - (span.stop - span.start)
            if grad is None:
                parts.append(self.work.new_zeros(self.work.shape[0], width))
            else:
                parts.append(grad.flatten(1))
                if filling:
                    parts.append(grad.new_zeros(self.work.shape[0], filling))
        return torch.cat(parts, 1)  # (T, n)


class FlatAdamW:
    """Master weights and moments in float32, everything on the device, no host involved in a step."""

    SMALL = 1 << 14  # elements a trial: smaller parameters are packed

    def __init__(
        self, parameters: Sequence[StackParameter], training: Training, schedule: Schedule, compiled: bool
    ):
        self.parameters, self.schedule = list(parameters), schedule
        self.betas, self.eps, self.clip_norm = training.betas, training.eps, training.clip_norm
        self.split = self.parameters[0].work.dtype == torch.bfloat16
        small = [(i, p) for i, p in enumerate(self.parameters) if p.work[0].numel() < self.SMALL]
        self.pack = Pack(small)
        place = {i: k for k, i in enumerate(self.pack.indices)}
        self.large = [i for i in range(len(self.parameters)) if i not in place]
        self.m, self.v, self.low = [], [], []
        for i, p in enumerate(self.parameters):
            if i in place:
                p.work.data = self.pack.view(self.pack.work, place[i])
                self.m.append(self.pack.view(self.pack.m, place[i]))
                self.v.append(self.pack.view(self.pack.v, place[i]))
                self.low.append(self.pack.view(self.pack.low, place[i]))
            else:
                self.m.append(torch.zeros(p.work.shape, dtype=torch.float32, device=p.work.device))
                self.v.append(torch.zeros_like(self.m[-1]))
                self.low.append(torch.zeros_like(p.work, dtype=torch.int16) if self.split else self.m[-1])
        self.frozen_somewhere = any(bool((p.lr == 0).any()) for p in self.parameters)
        self.update: Any = split_step if self.split else plain_step
        self.squares: Any = squares
        if self.split and kernels is not None and self.pack.work.is_cuda:
            self.update, self.squares = kernels.adam, kernels.squares
        elif compiled:
            self.update = torch.compile(self.update, dynamic=True)

    @torch.no_grad()
    def set_values(self, index: int, values: Tensor) -> None:
        """Write float32 starting values (T, ...) into a parameter."""
        p = self.parameters[index]
        if self.split:
            high, low = SplitFloat.split(values.contiguous())
            p.work.copy_(high)
            self.low[index].copy_(low)
        else:
            p.work.copy_(values)

    def values(self, index: int) -> Tensor:
        """The float32 weights (T, ...)."""
        work = self.parameters[index].work.detach()
        return SplitFloat.join(work, self.low[index]) if self.split else work

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor | None], step: Tensor) -> None:
        """Clip and update; `step` () int counts from 0 and lies on the device."""
        packed = self.pack.gather(grads)
        clip = self._clip(grads, packed)[:, None]  # (T, 1)
        factor, t = self.schedule.on_device(step), step.float() + 1
        beta1, beta2 = self.betas
        scalars = torch.stack(
            [
                torch.full_like(t, beta1),
                torch.full_like(t, beta2),
                torch.full_like(t, self.eps),
                1 - beta1**t,
                (1 - beta2**t).sqrt(),
            ]
        )
        pack = self.pack
        own = (pack.work, pack.low, pack.m, pack.v) if self.split else (pack.work, pack.m, pack.v)
        self.update(*own, packed, clip, pack.lr * factor, pack.decay, scalars)
        rates: dict[int, Tensor] = {}
        for i in self.large:
            p, grad = self.parameters[i], grads[i]
            if grad is None:
                continue
            if id(p.lr) not in rates:  # parameters of one layer share theirs
                rates[id(p.lr)] = (p.lr * factor)[:, None]
            flat = [x.flatten(1) for x in (p.work.detach(), self.low[i], self.m[i], self.v[i])]
            if not self.split:
                flat.pop(1)
            self.update(*flat, grad.flatten(1), clip, rates[id(p.lr)], p.decay[:, None], scalars)

    def _clip(self, grads: Sequence[Tensor | None], packed: Tensor) -> Tensor:
        """(T,): what each trial's gradient is multiplied with."""
        if self.clip_norm <= 0:
            return torch.ones(packed.shape[0], device=packed.device)
        parts = [(packed.float().square() * self.pack.live).sum(1, keepdim=True)]
        for i in self.large:
            grad = grads[i]
            if grad is None:
                continue
            part = self.squares(grad.flatten(1))
            if self.frozen_somewhere:
                part = part * (self.parameters[i].lr > 0)[:, None]
            parts.append(part)
        norm = torch.cat(parts, 1).sum(1).sqrt()
        return (self.clip_norm / (norm + CLIP_EPS)).clamp(max=1.0)

    def state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for i, p in enumerate(self.parameters):
            state |= {f"work/{p.name}": p.work.detach(), f"m/{p.name}": self.m[i], f"v/{p.name}": self.v[i]}
            if self.split:
                state[f"low/{p.name}"] = self.low[i]
        return state

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor], steps_done: int) -> None:
        for name, own in self.state().items():
            own.copy_(state[name])


class FusedAdamW:
    """torch.optim.AdamW(fused=True) on the stacked tensors, or on each trial's slices where rates differ."""

    def __init__(self, parameters: Sequence[StackParameter], training: Training, schedule: Schedule):
        self.parameters, self.schedule, self.clip_norm = list(parameters), schedule, training.clip_norm
        self.slices: list[tuple[nn.Parameter, int, int | None]] = []  # (what is optimised, parameter, trial)
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for i, p in enumerate(self.parameters):
            alike = bool((p.lr == p.lr[0]).all() and (p.decay == p.decay[0]).all())
            for t in [None] if alike else range(len(p.lr)):
                part = nn.Parameter(p.work.detach() if t is None else p.work.detach()[t])
                lr, decay = float(p.lr[t or 0]), float(p.decay[t or 0])
                if lr > 0:
                    groups.setdefault((lr, decay), []).append(part)
                    self.slices.append((part, i, t))
        self.optimiser = torch.optim.AdamW(
            [{"params": ps, "lr": lr, "weight_decay": wd, "peak": lr} for (lr, wd), ps in groups.items()],
            betas=training.betas,
            eps=training.eps,
            fused=True,
        )
        self.live = [(p.lr > 0).float() for p in self.parameters]

    @torch.no_grad()
    def set_values(self, index: int, values: Tensor) -> None:
        self.parameters[index].work.copy_(values)

    def values(self, index: int) -> Tensor:
        return self.parameters[index].work.detach()

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor | None], step: Tensor) -> None:
        if self.clip_norm > 0:
            norms = [
                torch.linalg.vector_norm(g.flatten(1), dim=1) * live
                for g, live in zip(grads, self.live, strict=True)
                if g is not None
            ]
            norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)  # (T,)
            clip = (self.clip_norm / (norm + CLIP_EPS)).clamp(max=1.0)
            if bool((clip != 1).any()):  # true for NaN as well
                for g in grads:
                    if g is not None:
                        g.mul_(clip.view(-1, *([1] * (g.dim() - 1))))
        # the fused kernel walks raw memory: a gradient must be laid out like its parameter
        grads = [None if g is None else g.contiguous() for g in grads]
        for part, i, t in self.slices:
            grad = grads[i]
            part.grad = None if grad is None else grad if t is None else grad[t]
        factor = self.schedule(int(step))
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * factor
        self.optimiser.step()

    def state(self) -> dict[str, Tensor]:
        state = {f"work/{p.name}": p.work.detach() for p in self.parameters}
        for part, i, t in self.slices:
            moments: dict[str, Any] = self.optimiser.state.get(part, {})
            where = f"{self.parameters[i].name}#{'' if t is None else t}"
            for key in ("exp_avg", "exp_avg_sq"):
                if key in moments:
                    state[f"{key}/{where}"] = moments[key]
        return state

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor], steps_done: int) -> None:
        for p in self.parameters:
            p.work.copy_(state[f"work/{p.name}"])
        for part, i, t in self.slices:
            where = f"{self.parameters[i].name}#{'' if t is None else t}"
            if f"exp_avg/{where}" in state:
                self.optimiser.state[part] = {
                    "step": torch.tensor(float(steps_done)),
                    "exp_avg": state[f"exp_avg/{where}"].clone(),
                    "exp_avg_sq": state[f"exp_avg_sq/{where}"].clone(),
                }
