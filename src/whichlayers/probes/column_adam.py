"""AdamW for the columns of batched weight matrices, each with its own learning rate and weight decay."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BETAS, EPS = (0.9, 0.999), 1e-8


class ColumnAdam:
    """AdamW whose learning rate and weight decay may differ between the columns of a batch of weight matrices.

    Args:
        weight: (U, d, K), with its gradient in `weight.grad`.
        bias: (U, 1, K), with its gradient in `bias.grad`; it does not decay.
        lr: (U, 1, K).
        decay: (U, 1, K), learning rate times weight decay.
        capturable: Keep the step number on the device, so that a step can be captured as a CUDA graph.
    """

    def __init__(self, weight: Tensor, bias: Tensor, lr: Tensor, decay: Tensor, capturable: bool):
        self.parameters, self.lr, self.decay = (weight, bias), lr, decay
        self.decays = bool(decay.any())
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        self.number: float | Tensor = 0.0  # of the last step
        if capturable:
            self.number = torch.zeros((), dtype=torch.float64, device=weight.device)

    def step(self) -> None:
        """One step on all parameters."""
        self.number += 1  # in place if it is a tensor
        bias_corrections: tuple[float | Tensor, float | Tensor]
        if isinstance(self.number, Tensor):
            bias_corrections = (
                (1 - BETAS[0] ** self.number).float(),
                (1 - BETAS[1] ** self.number).sqrt().float(),
            )
        else:
            bias_corrections = 1 - BETAS[0] ** self.number, math.sqrt(1 - BETAS[1] ** self.number)
        if self.decays:
            self.parameters[0].mul_(1 - self.decay)
        step_size = self.lr / bias_corrections[0]
        for parameter, (exp_avg, exp_avg_sq) in zip(self.parameters, self.moments, strict=True):
            gradient = parameter.grad
            assert gradient is not None
            exp_avg.lerp_(gradient, 1 - BETAS[0])
            exp_avg_sq.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            denominator = exp_avg_sq.sqrt().div_(bias_corrections[1]).add_(EPS)
            parameter.sub_(exp_avg.div(denominator).mul_(step_size))

    def keep(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Remove all matrices but those at `index`, (left,) int64; returns the new weight and bias."""
        weight, bias = (parameter[index] for parameter in self.parameters)
        weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)
        self.parameters, self.lr, self.decay = (weight, bias), self.lr[index], self.decay[index]
        self.moments = [(exp_avg[index], exp_avg_sq[index]) for exp_avg, exp_avg_sq in self.moments]
        return weight, bias
