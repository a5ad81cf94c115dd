"""Engines that fail in different ways, named by tests on Ray, whose workers do not inherit the test's environment."""

from __future__ import annotations

import os
import signal
import time

import fakes


def failing(stack, runner, on_epoch, on_steps):
    if any(trial.seed == 1 for trial in stack.trials):
        raise ValueError("a corrupt shard")
    return fakes.engine(stack, runner, on_epoch, on_steps)


def diverging(stack, runner, on_epoch, on_steps):
    return fakes.diverging_engine(stack, runner, on_epoch, on_steps)


def low_memory(stack, runner, on_epoch, on_steps):
    if stack.size > 2:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return fakes.engine(stack, runner, on_epoch, on_steps)


def killing(stack, runner, on_epoch, on_steps):
    time.sleep(0.05)
    if any(trial.seed == 1 for trial in stack.trials):
        os.kill(os.getpid(), signal.SIGKILL)
    return fakes.engine(stack, runner, on_epoch, on_steps)
