"""Compiling ahead of a stack: the same sizes and the same graphs as the stack itself compiles."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as tf
from tiny import tiny_encoder, tiny_task

from whichlayers.engine import step_sizes
from whichlayers.engine.compile_ahead import CompileProcess, plan_job, run_job
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.models.surgery import reorder
from whichlayers.trial import Adapter, Surgery, Training, Trial

TRAINING = Training(epochs=2, batch_size=8, lr=1e-3)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
with_compiler = pytest.mark.skipif(
    "WHICHLAYERS_TEST_COMPILER" not in os.environ, reason="set WHICHLAYERS_TEST_COMPILER=1; takes minutes"
)


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    monkeypatch.setattr(step_sizes, "_compiled_sizes", {})


def make_trials(count: int = 3, training: Training = TRAINING, **other) -> list[Trial]:
    surgeries = [Surgery(), Surgery(reinit=(2, 3)), Surgery(order=(3, 1, 2))]
    return [
        Trial("m", "m", "t", "t", 52, seed, training=training, surgery=surgeries[seed % 3], **other)
        for seed in range(count)
    ]


def compiled(**other) -> EngineSettings:
    return EngineSettings(compiled=True, packed=False, **other)


@pytest.mark.parametrize("slots", [None, 5])
def test_the_job_has_the_sizes_that_the_stack_compiles(monkeypatch, slots):
    monkeypatch.setattr(step_sizes, "FLOP_PER_SECOND", 1e3)  # every length pays
    data, trials, settings = tiny_task(), make_trials(), compiled(slots=slots)
    job = plan_job(trials, tiny_encoder("bert"), data, "cpu", settings)
    assert len(job.trials) == (slots or 3)
    trainer = StackTrainer(trials, tiny_encoder("bert"), data, torch.device("cpu"), settings)
    assert job.sizes == tuple(sorted(set(trainer.step_runner.sizes.tolist())))
    assert plan_job(trials, tiny_encoder("bert"), data, "cpu", settings) is None, "all sizes are compiled"
    assert plan_job(trials[:2], tiny_encoder("bert"), data, "cpu", compiled()) is not None, "another shape"


def test_nothing_is_compiled_ahead_where_the_stack_is_not_compiled():
    data, encoder = tiny_task(), tiny_encoder("bert")
    auto = EngineSettings()
    assert plan_job(make_trials(), encoder, data, "cuda", auto) is None, "too short to be compiled"
    assert plan_job(make_trials(), encoder, data, "cpu", auto) is None
    assert plan_job(make_trials(), encoder, data, "cuda", dataclasses.replace(auto, compiled=False)) is None
    assert (
        plan_job(make_trials(), encoder, data, "cuda", dataclasses.replace(auto, compiled=True)) is not None
    )
    many = dataclasses.replace(auto, similar_stacks=10**6)
    assert plan_job(make_trials(), encoder, data, "cuda", many) is not None


@pytest.mark.parametrize(
    "other",
    [
        {"training": dataclasses.replace(TRAINING, lr_factors=((1, 0.0),))},
        {"training": dataclasses.replace(TRAINING, parameters="biases")},
        {"adapter": Adapter("lora", (1,), ("attention.self.query",), 2)},
    ],
)
def test_stacks_that_train_a_part_of_the_model_are_not_compiled_ahead(other):
    trials = [dataclasses.replace(trial, **other) for trial in make_trials()]
    assert plan_job(trials, tiny_encoder("bert"), tiny_task(), "cpu", compiled()) is None


def test_models_with_different_layers_are_not_compiled_ahead():
    trials = [dataclasses.replace(trial, surgery=Surgery()) for trial in make_trials()]
    assert plan_job(trials, tiny_encoder("gemma3_text"), tiny_task(), "cpu", compiled()) is None


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that torch.compile sees, with the shapes and strides of their inputs; nothing is compiled."""
    found = set()

    def backend(graph, inputs):
        if all(
            isinstance(x, torch.Tensor) for x in inputs
        ):  # not the optimizer, which is compiled for any shape
            found.add((graph.code, tuple((x.shape, x.stride(), x.dtype) for x in inputs)))
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "family",
    ["bert", "mpnet", "llama"],
)
def test_one_layer_gives_all_graphs_of_the_stack(graphs, family):
    data, settings, encoder = (
        tiny_task(),
        compiled(precision="bfloat16", bfloat16_weights=True),
        tiny_encoder(family),
    )
    trials = make_trials()
    job = plan_job(trials, encoder, data, "cpu", settings)
    run_job(job)
    ahead = set(graphs)
    graphs.clear()
    torch._dynamo.reset()
    trainer = StackTrainer(trials, encoder, data, torch.device("cpu"), settings)
    for size in job.sizes:
        trainer.step_on_device.zero_()
        trainer.train_step(size)
    assert len(graphs) >= 2
    assert graphs <= ahead


def test_a_model_without_a_pooler_and_with_fewer_layers(graphs):
    encoder = reorder(tiny_encoder("bert"), (1, 2))
    encoder.pooler = None
    settings, data = compiled(precision="bfloat16", bfloat16_weights=True), tiny_task()
    trials = [dataclasses.replace(trial, surgery=Surgery()) for trial in make_trials()]
    run_job(plan_job(trials, encoder, data, "cpu", settings))
    ahead = set(graphs)
    graphs.clear()
    torch._dynamo.reset()
    trainer = StackTrainer(trials, encoder, data, torch.device("cpu"), settings)
    trainer.train_step(16)
    assert graphs
    assert graphs <= ahead


# --- with the real compiler, in other processes ---


def real_stack(device: str):
    """The arguments of a stack in bfloat16; on a GPU it is packed and uses the attention kernel."""
    torch.manual_seed(0)
    config = tf.BertConfig(
        vocab_size=120, hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=66,
    )  # fmt: skip
    encoder = tf.BertModel(config, add_pooling_layer=False).eval()
    settings = EngineSettings(precision="bfloat16", bfloat16_weights=True, compiled=True, graphs=False)
    return make_trials(), encoder, tiny_task(), device, settings


def train_real_stack(device: str, size: int) -> None:
    """Take a step and print how many graphs were found in the cache, how many were not, and the losses."""
    trials, encoder, data, _, settings = real_stack(device)
    trainer = StackTrainer(trials, encoder, data, torch.device(device), settings)
    trainer.train_step(size)
    counts = torch._dynamo.utils.counters["inductor"]
    print(counts["fxgraph_cache_hit"], counts["fxgraph_cache_miss"], trainer.loss_sum.tolist())


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=with_compiler), pytest.param("cuda", marks=on_gpu)]
)
def test_the_stack_finds_its_code_in_the_cache(tmp_path, monkeypatch, device):
    job = plan_job(*real_stack(device))
    path = [str(Path(__file__).parent), *sys.path]
    code = f"import sys; sys.path[:] = {path!r}; import test_compile_ahead as t; "
    code += f"t.train_real_stack({device!r}, {job.sizes[0]})"

    def run_stack(cache) -> list[str]:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split(maxsplit=2)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "ahead"))
    assert CompileProcess(job).wait(600) == 0
    hits, misses, losses = run_stack(tmp_path / "ahead")
    assert int(hits) > 0
    assert int(misses) == 0
    assert run_stack(tmp_path / "empty")[::2] == ["0", losses], "the same bits without the cache"


@with_compiler
def test_the_process_ends_when_its_parent_does(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    process = CompileProcess(plan_job(*real_stack("cpu")))
    process.process.stdin.close()  # as the system does when the parent is killed
    assert process.process.wait(60) == 1


def test_every_size_is_compiled_with_a_batch_that_fits(monkeypatch):
    """The kernels of a GPU read what the batch holds, whatever the size."""
    data, settings, encoder = tiny_task(), compiled(), tiny_encoder("bert")
    job = plan_job(make_trials(), encoder, data, "cpu", settings)
    job = dataclasses.replace(job, sizes=(job.sizes[0], job.sizes[-1] + 16))
    steps = []
    monkeypatch.setattr(StackTrainer, "train_step", lambda self, size: steps.append((self, size)))
    run_job(job)
    assert [size for _, size in steps] == list(job.sizes)
    for trainer, _ in steps:
        lengths = trainer.train_loader.step_lengths
        assert lengths[int(trainer.step_on_device)] == lengths.min() < lengths.max()
