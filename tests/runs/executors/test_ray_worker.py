"""The actor of a Ray cluster, without a cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes import HANDLERS, make_trial

from whichlayers.engine.settings import EngineSettings, checkpoint_file
from whichlayers.runs.executors import ray_worker
from whichlayers.runs.executors.worker import WorkerConfig
from whichlayers.runs.handlers.finetuned_models import model_path
from whichlayers.runs.plan import Stack
from whichlayers.trial import WordProbe

pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[client]>=2.40'")


@pytest.mark.parametrize(("shared", "seconds"), [(False, 60.0), (True, 60.0), (False, 0.0)])
def test_finetuned_models_are_kept_wherever_checkpoints_are(tmp_path, monkeypatch, shared, seconds):
    scratch, folder = tmp_path / "scratch", tmp_path / "shared" if shared else None
    monkeypatch.setattr(ray_worker, "local_study_folder", lambda run_key: scratch)
    config = WorkerConfig(HANDLERS, "cpu", 1, checkpoints=folder, checkpoint_seconds=seconds)
    worker = ray_worker.RayWorker(config, None, "key")
    used = worker.runner.config
    assert worker.runner.context.finetuned_models == used.finetuned_models == scratch / "encoders"
    assert used.checkpoints == (folder if shared else scratch / "checkpoints" if seconds else None)

    trial = dataclasses.replace(make_trial(), word_probe=WordProbe("c", "c"))
    stack, files = Stack(0, (trial,)), list[Path]()
    files.append(model_path(scratch / "encoders", trial.finetuning))
    if used.checkpoints is not None:
        files.append(checkpoint_file(EngineSettings(checkpoint_folder=used.checkpoints), stack.trials))
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    worker.finished = stack
    worker._delete_files_of_finished()
    assert [file.exists() for file in files] == [False, *[shared for _ in files[1:]]]
