"""benchmarks/carry_model.py splits a model into parts and joins them on another machine."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_study import write_model

from whichlayers.models.load import describe, load_encoder, resolve

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "carry_model.py"
WEIGHTS = "model.safetensors"


def carry_model(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def model(tmp_path) -> Path:
    return write_model(tmp_path / "model", [f"word{i}" for i in range(500)])


def test_a_model_is_split_and_joined_part_by_part(model, tmp_path):
    here, there, models = tmp_path / "here", tmp_path / "there", tmp_path / "models"
    assert carry_model("split", model, here, "--mebibytes", 0.01).returncode == 0
    parts = sorted((here / "model").iterdir(), key=lambda folder: int(folder.name))
    assert len(parts) > 3
    assert all((folder / "part").stat().st_size <= 0.01 * (1 << 20) for folder in parts[1:])
    nothing = carry_model("join", there, models)
    assert (nothing.returncode, nothing.stdout) == (1, f"there is no model in {there}\n")
    for folder in parts[:-1]:
        shutil.copytree(folder, there / "model" / folder.name)
    missing = carry_model("join", there, models)
    assert missing.returncode == 1
    assert f"1 of {len(parts) - 1} parts are left: {parts[-1].name} (missing)" in missing.stdout
    assert not (models / "model" / WEIGHTS).exists()
    shutil.copytree(parts[-1], there / "model" / parts[-1].name)
    damaged = there / "model" / "2" / "part"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert "2 (damaged)" in carry_model("join", there, models).stdout
    shutil.copyfile(parts[2] / "part", damaged)
    assert carry_model("join", there, models).returncode == 0
    assert carry_model("join", there, models).returncode == 0, "again"

    joined, original = (resolve(str(folder)) for folder in (models / "model", model))
    assert describe(joined).depth == describe(original).depth
    weights = dict(load_encoder(joined).named_parameters())
    for name, value in load_encoder(original).named_parameters():
        assert weights[name].dtype == torch.float32
        assert torch.equal(weights[name], value.half().float())
    stored = {value.dtype for value in load_file(models / "model" / WEIGHTS).values()}
    assert stored == {torch.float16}


def test_a_value_that_is_too_large_for_float16_is_an_error(model, tmp_path):
    weights = load_file(model / WEIGHTS)
    name = next(iter(weights))
    weights[name].view(-1)[0] = 1e5
    save_file(weights, model / WEIGHTS, {"format": "pt"})
    done = carry_model("split", model, tmp_path / "carry")
    assert done.returncode == 1
    assert f"{name} in " in done.stderr
    assert "too large for float16" in done.stderr
