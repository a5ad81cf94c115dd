"""Runs a real study that prepares its next stack on a CPU: `python drive_preload.py STUDY_FILE FOLDER WORKERS`.

Loading in the background never ends in the stack with the number PRELOAD_FOREVER (from 0): the process that loads
writes its id to PRELOAD_LOG and waits to be killed. If that file exists, loading ends. TRIALS_LOG lists the trials that
were trained, one per line.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from whichlayers.runs.executors.worker import WorkerConfig
from whichlayers.runs.handlers import HANDLERS
from whichlayers.runs.handlers.finetune import FinetuneHandler
from whichlayers.runs.run_study import run
from whichlayers.study.study_file import load_study


class EndlessLoading(FinetuneHandler):
    """Finetuning whose model is loaded in the background, but not completely."""

    preloaded = 0

    def preload(self, trials, worker):
        number, EndlessLoading.preloaded = self.preloaded, self.preloaded + 1
        log = Path(os.environ["PRELOAD_LOG"])
        if number != int(os.environ["PRELOAD_FOREVER"]) or log.exists():
            super().preload(trials, worker)
            return
        worker.assets.tokenizer(trials[0])  # a part of what is loaded
        log.write_text(f"{os.getpid()}\n")
        time.sleep(600)

    def run(self, trials, worker, settings, report):
        super().run(trials, worker, settings, report)
        with open(os.environ["TRIALS_LOG"], "a") as log:
            log.write("".join(f"{trial.id}\n" for trial in trials))


if __name__ == "__main__":
    from drive_preload import EndlessLoading as Handler  # by a name that workers can import

    WorkerConfig.preloads = True  # on a CPU as well
    study_file, folder, workers = sys.argv[1:]
    handlers = {**HANDLERS, "finetune": Handler()}
    summary = run(
        load_study(Path(study_file)),
        folder,
        device="cpu",
        workers=int(workers),
        max_stack=2,
        handlers=handlers,
        on_event=lambda event: None,
    )
    print(summary.done, summary.failed)
