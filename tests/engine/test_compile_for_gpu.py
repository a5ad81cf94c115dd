"""Training steps compile for an H200: one set of graphs, no unexpected graph breaks, kernels without register spills.

Nothing is run on a GPU, see tests/helpers/fake_gpu.py; each case takes half a minute to two minutes in its own process.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import FAMILIES

from whichlayers.engine.packing import PACKABLE_FAMILIES

SCRIPT = Path(__file__).parents[1] / "helpers" / "compile_for_gpu.py"
SETTINGS = [("bert", s) for s in ("frozen", "prefix", "biases", "lora", "ia3", "recompute")]
SETTINGS += [("gpt2", s) for s in ("frozen", "lora", "ia3")]

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("WHICHLAYERS_TEST_COMPILER"), reason="set WHICHLAYERS_TEST_COMPILER=1"
    ),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.slow,
]


def compile_step(*arguments: str) -> dict:
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_every_family(family):
    packed = family in PACKABLE_FAMILIES
    result = compile_step(family, *([] if packed else ["--padded"]))
    assert result["packed"] == packed
    assert sum(result["graphs"]) > 10
    assert result["compiled_in_second_step"] == 0
    assert all("_lookup" in text for text in result["breaks"])  # which is excluded on purpose
    if packed and family not in ("gemma2", "deberta-v2"):  # capped scores, disentangled attention
        assert {"_forward", "_backward", "_adam"} <= set(result["kernels"])


@pytest.mark.parametrize(("family", "setting"), SETTINGS)
def test_frozen_layers_and_adapters(family, setting):
    result = compile_step(family, "--setting", setting)
    assert sum(result["graphs"]) > 10
    assert result["compiled_in_second_step"] == 0


def test_own_kernels_fit_into_registers():
    result = compile_step("bert", "--traffic", "--trials", "32", "--tokens", "1024")  # heads of 64
    assert {"_forward", "_backward"} <= set(result["kernels"])
    for uses in result["kernels"].values():
        assert all(stack == 0 for _, stack, _ in uses)
