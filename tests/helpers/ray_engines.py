"""Engines that go wrong in a way of their own, to be named to workers that inherit no environment from a test."""

from __future__ import annotations

import os
import signal
import time

import fakes


def bad(stack, workplace, on_epoch, on_steps):
    if any(trial.seed == 1 for trial in stack.trials):
        raise ValueError("a corrupt shard")
    return fakes.engine(stack, workplace, on_epoch, on_steps)


def diverging(stack, workplace, on_epoch, on_steps):
    return fakes.judging_engine(stack, workplace, on_epoch, on_steps)


def tight(stack, workplace, on_epoch, on_steps):
    if stack.size > 2:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return fakes.engine(stack, workplace, on_epoch, on_steps)


def deadly(stack, workplace, on_epoch, on_steps):
    time.sleep(0.05)
    if any(trial.seed == 1 for trial in stack.trials):
        os.kill(os.getpid(), signal.SIGKILL)
    return fakes.engine(stack, workplace, on_epoch, on_steps)
