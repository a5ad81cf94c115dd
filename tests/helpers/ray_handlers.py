"""Handlers that fail in different ways, for tests on Ray, whose workers do not inherit the test's environment."""

from __future__ import annotations

import os
import signal
import time

from fakes import FakeHandler


class Failing(FakeHandler):
    def run(self, trials, worker, settings, report):
        if any(trial.seed == 1 for trial in trials):
            raise ValueError("a corrupt shard")
        super().run(trials, worker, settings, report)


class LowMemory(FakeHandler):
    def run(self, trials, worker, settings, report):
        if len(trials) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        super().run(trials, worker, settings, report)


class Killing(FakeHandler):
    def run(self, trials, worker, settings, report):
        time.sleep(0.05)
        if any(trial.seed == 1 for trial in trials):
            os.kill(os.getpid(), signal.SIGKILL)
        super().run(trials, worker, settings, report)
