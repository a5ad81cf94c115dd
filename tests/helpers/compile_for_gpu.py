"""Compile a training step of a stack for an H200 on a machine without one, and print what was compiled as JSON.

    python tests/helpers/compile_for_gpu.py llama --setting lora
    python tests/helpers/compile_for_gpu.py bert --trials 32 --tokens 1024 --traffic

With --traffic, the stack has one layer of the size of BERT-Base, and each kernel is listed with the megabytes that it
reads and writes: what an H200 moves in the same time at 4.1 MB per microsecond. Needs g++ and Triton, see fake_gpu.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]

import fake_gpu  # noqa: E402, I001  before torch
import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._inductor import compile_fx  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch.utils._pytree import tree_map  # noqa: E402
from transformers import AutoModel, BertConfig, BertModel, MPNetConfig, MPNetModel  # noqa: E402

from tiny import CONFIGS, DECODERS, tiny_encoder, tiny_task  # noqa: E402
from whichlayers.engine import attention_kernels  # noqa: E402
from whichlayers.engine.settings import EngineSettings  # noqa: E402
from whichlayers.engine.stack_trainer import StackTrainer  # noqa: E402
from whichlayers.models.structure import ModelStructure  # noqa: E402
from whichlayers.trial import Adapter, Training, Trial  # noqa: E402

TRAINING = Training(epochs=2, batch_size=8, dropout=0.1)
FROZEN = dataclasses.replace(TRAINING, lr_factors=((0, 0.0), (1, 0.0), (2, 0.0)))
BASE = {"bert": (BertModel, BertConfig), "mpnet": (MPNetModel, MPNetConfig)}  # with --traffic
SETTINGS = ("all", "frozen", "prefix", "biases", "lora", "ia3", "recompute")
SIZES = {True: 112, False: 16}  # of a step, if packed


def settings_of(name: str, family: str) -> dict[str, Any]:
    """Fields of a trial."""
    targets = tuple(ModelStructure(tiny_encoder(family)).linear_modules())[:3]
    return {
        "frozen": {"training": FROZEN},
        "prefix": {"training": dataclasses.replace(FROZEN, frozen_dropout=False)},
        "biases": {"training": dataclasses.replace(TRAINING, parameters="biases")},
        "lora": {"adapter": Adapter("lora", (2, 3), targets, rank=4, dropout=0.1)},
        "ia3": {"adapter": Adapter("ia3", (1, 3), targets)},
    }.get(name, {})


def make_trainer(args: argparse.Namespace) -> StackTrainer:
    fields = {"head": "last" if args.family in DECODERS else "mean", "training": TRAINING}
    if args.traffic:
        model, config = BASE[args.family]
        encoder = model(config(num_hidden_layers=1, attn_implementation="eager"), add_pooling_layer=False)
    else:
        config = CONFIGS[args.family]()
        # as the kernel needs
        config.num_attention_heads = min(config.num_attention_heads, config.hidden_size // 16)
        encoder = AutoModel.from_config(config, attn_implementation="eager")
        fields |= settings_of(args.setting, args.family)
    trials = [Trial("m", "m", "t", "t", 52, seed, **fields) for seed in range(args.trials)]
    settings = EngineSettings(
        precision="float32" if args.padded else "bfloat16",
        packed=not args.padded,
        recompute=args.setting == "recompute",
        compiled=True,
        graphs=False,
    )
    with fake_gpu.FakeDevice():
        return StackTrainer(trials, encoder, tiny_task(kind="classification"), fake_gpu.DEVICE, settings)


def backend(graph: Any, inputs: Any) -> Any:
    """Compile a graph and its backward pass with Inductor, and let the step run the graph on FakeTensors."""
    before = len(fake_gpu.compiled_kernels)
    compile_fx.compile_fx(graph, inputs)
    kernels_of_graphs.append(len(fake_gpu.compiled_kernels) - before)
    return graph


def compile_with_backend(function: Any, **options: Any) -> Any:
    return torch_compile(function, backend=backend, **options)


def note_traffic(graph: GraphLowering) -> Any:
    """In place of GraphLowering.count_bytes: what each kernel of a compiled graph reads and writes."""
    for node in graph.scheduler.nodes:
        parts = [part.node.get_origins() for part in node.get_nodes() if part.node is not None]
        names = {
            str(origin.target).removesuffix(".default").split(".")[-1] for part in parts for origin in part
        }
        megabytes = round(node.get_read_write_buffers_sizes() / 1e6, 1)
        direction = "backward" if graph.is_backward else "forward"
        traffic.append((direction, megabytes, " ".join(sorted(names))))
    return 0, [], []


def note_calls(operator: Any) -> None:
    """Note the inputs with which an operator of ours is called."""
    declare = operator._abstract_fn

    def note(*inputs: Any) -> Any:
        calls.append((operator, tree_map(_describe, inputs)))
        return declare(*inputs)

    operator.register_fake(note)


def run_kernels() -> None:
    """Compile the Triton kernels of the noted calls; what they return is what the operator declares."""
    for operator, described in tuple(calls):  # declaring the result notes another
        with fake_gpu.fake_mode:
            inputs = tree_map(_make, described, is_leaf=lambda x: isinstance(x, Description))
            declared, real = operator._abstract_fn(*inputs), operator._init_fn(*inputs)
        for x, y in zip(_tensors(declared), _tensors(real), strict=True):
            assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype), operator


class Description(NamedTuple):
    """Of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def _describe(value: Any) -> Any:
    is_tensor = isinstance(value, Tensor)
    return Description(tuple(value.shape), value.stride(), value.dtype) if is_tensor else value


def _make(value: Any) -> Any:
    if not isinstance(value, Description):
        return value
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=fake_gpu.DEVICE)


def _tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("family")
parser.add_argument(
    "--setting", choices=SETTINGS, default="all", help="which parameters are trained, and how"
)
parser.add_argument("--padded", action="store_true", help="pad sequences; in float32")
parser.add_argument("--trials", type=int, default=2)
parser.add_argument(
    "--tokens", type=int, help="size of a step: tokens of a trial, or length of the sequences"
)
parser.add_argument(
    "--traffic", action="store_true", help="BERT-Base or MPNet-Base: what each kernel reads and writes"
)

if __name__ == "__main__":
    args = parser.parse_args()
    torch_compile, kernels_of_graphs, traffic = torch.compile, list[int](), list[tuple[str, float, str]]()
    calls = list[tuple[Any, Any]]()
    torch.compile = compile_with_backend
    if args.traffic:
        GraphLowering.count_bytes = note_traffic
        compile_fx.inductor_metrics_log.isEnabledFor = lambda level: True
        compile_fx.inductor_metrics_log.info = lambda *values: None
    for operator in (attention_kernels.attention, attention_kernels.attention_backward):
        note_calls(operator)
    trainer = make_trainer(args)
    size = args.tokens or SIZES[trainer.size_in_tokens]
    with fake_gpu.fake_mode:
        trainer.train_step(size)
        compiled = len(fake_gpu.compiled_kernels)
        trainer.train_step(size)
    calls = list({repr(call): call for call in calls}.values())
    run_kernels()
    for line in traffic:
        print("{:8} {:8.1f} MB  {}".format(*line))
    result = {
        "packed": trainer.packed,
        "graphs": kernels_of_graphs,  # number of kernels of each
        "compiled_in_second_step": len(fake_gpu.compiled_kernels) - compiled,
        "breaks": list(counters["graph_break"]),
        "kernels": fake_gpu.resources,  # our own: registers, bytes of stack and of shared memory
    }
    print(json.dumps(result))
