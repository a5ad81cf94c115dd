"""What stacks of trials cost: memory, time and work. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_PARAMETER = 16  # float32 weight, two moments and gradient
HEADROOM = 0.1  # fraction of the free memory that is left unused
# part of a compilation that remains for a stack whose code was compiled ahead: it is traced again and read from disk
CACHED_COMPILATION = 0.2
FIXED_FRACTION = 0.1  # fraction of a stack's time that does not depend on the number of trials


@dataclass(frozen=True)
class MemoryCost:
    """Memory in bytes that a stack takes, linear in its number of trials."""

    first_trial: int  # a stack of one trial
    extra_trial: int  # each further trial

    def total(self, trials: int) -> int:
        """Bytes that a stack of this many trials takes."""
        return self.first_trial + (trials - 1) * self.extra_trial

    def max_trials(self, free: float, limit: int) -> int:
        """Largest number of trials, up to `limit`, that fits into `free` bytes; 0 if not even one fits."""
        usable = free * (1 - HEADROOM)
        if self.total(1) > usable:
            return 0
        return (
            limit if self.total(limit) <= usable else 1 + int((usable - self.first_trial) // self.extra_trial)
        )


@dataclass(frozen=True)
class StackTiming:
    """Seconds that stacks of one kind take, measured on a stack of `trials`.

    All are costs as of `Timer`: without the slowdown by other programs.
    """

    trials: int
    setup: float  # building the model, the data and the optimizer, and what the first steps take in addition
    compile: float  # torch.compile, for the first stack of its kind in a process
    capture: float  # CUDA graph capture, for every stack
    step: float  # one training step of the whole stack, mean over the lengths of its batches
    error: float  # standard error of `step`, relative to it
    evaluation: float  # evaluation of all trials
    finish: float  # weight changes at the end of training
    fixed_step: float = 0.0  # part of `step` that does not depend on the number of tokens
    slowdown: float = 1.0  # seconds by the clock for each second of cost, while other programs run

    def hidden_compilation(self, available: float) -> float:
        """Seconds of compilation that a stack does not wait for, if its code is compiled ahead.

        Args:
            available: Seconds that the stack before it trains.
        """
        return min(available, self.slowdown * self.compile * (1 - CACHED_COMPILATION))

    def seconds(self, trials: int, steps: int, evaluations: int, first: bool) -> float:
        """Estimated seconds by the clock of a stack of another size.

        Time grows linearly with the number of trials, except for a fixed fraction.

        Args:
            trials: Number of trials in the stack.
            steps: Number of training steps.
            evaluations: Number of evaluations.
            first: Whether the stack is the first of its kind in its process and must be compiled.
        """
        scale = FIXED_FRACTION + (1 - FIXED_FRACTION) * trials / self.trials
        once = self.capture + (self.compile if first else 0.0)
        repeated = self.setup + steps * self.step + evaluations * self.evaluation + self.finish
        return self.slowdown * (once + scale * repeated)


@dataclass(frozen=True)
class TrialWork:
    """Relative cost of the steps and evaluations of a trial.

    The unit, one token in the forward pass of one weight, is the same for all kinds of trials.
    """

    step: float = 1.0
    evaluation: float = 0.0
    steps_per_evaluation: int = 0  # 0: no evaluation
    first_steps: int = 0  # number of steps at the start that have a cost of their own
    first_step: float = 0.0  # that cost

    def total(self, steps: float) -> float:
        """The work of this many steps and of all evaluations after them."""
        evaluations = steps // self.steps_per_evaluation if self.steps_per_evaluation else 0
        first = min(steps, self.first_steps)
        return first * self.first_step + (steps - first) * self.step + evaluations * self.evaluation

    def done(self, steps: float) -> float:
        """The work done when this many steps were reported: an evaluation right after them is still to come."""
        pending = self.steps_per_evaluation and steps and steps % self.steps_per_evaluation == 0
        return self.total(steps) - (self.evaluation if pending else 0)
