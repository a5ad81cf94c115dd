"""Compile the layers of a stack before its turn, in a process of its own, into torch's cache on disk.

The code of one layer serves all layers. The process therefore builds a stack of models with a single layer and random
weights, with all other shapes of the real stack, and takes a training step of each size. When the real stack compiles
the same graphs, it finds their code in the cache. It chooses its sizes and whether to compile as if nothing had been
compiled ahead, so that its results are the same bits.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModel, PreTrainedModel

from whichlayers.data.tokenize import TokenizedTask
from whichlayers.engine.compilation import should_compile
from whichlayers.engine.cost import BYTES_PER_PARAMETER
from whichlayers.engine.dataloader import TrainDataLoader, used_token_ids
from whichlayers.engine.init_weights import InitialWeights
from whichlayers.engine.optimizer import FlatAdamW, ParameterBucket
from whichlayers.engine.packing import is_packable
from whichlayers.engine.recompute import is_large
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import ROW_MULTIPLE, StackTrainer
from whichlayers.engine.step_sizes import plan_sizes
from whichlayers.models.families import layers_differ
from whichlayers.models.load import max_input_length
from whichlayers.trial import Surgery, Trial

CUDA_PROCESS_BYTES = 2e9  # of a process on a GPU: the CUDA context and activations


@dataclasses.dataclass(frozen=True)
class CompileJob:
    """What to compile."""

    config: Any  # of the encoder
    has_pooler: bool
    depth: int  # number of layers of the real stack
    trials: tuple[Trial, ...]
    data: TokenizedTask
    device: str
    settings: EngineSettings
    sizes: tuple[int, ...]  # of training steps
    device_bytes: float  # memory that the process takes on the device


def plan_job(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    data: TokenizedTask,
    device: str,
    settings: EngineSettings,
) -> CompileJob | None:
    """What a stack will compile that this process has not compiled yet; None if that is nothing, or not supported.

    Uses host memory only. Supported are stacks that train all parameters of a model whose layers are all alike.
    """
    trials, first, on_cuda = settings.pad_trials(trials), trials[0], device.startswith("cuda")
    if not settings.may_compile(on_cuda):
        return None
    if not first.trains_all_parameters or layers_differ(encoder.config) or is_large(encoder):
        return None
    initial = InitialWeights(encoder, trials)
    depth = initial.depth_of(first)
    limit = max_input_length(initial.structure.family, encoder.config)
    loader = TrainDataLoader(trials, data, torch.device("cpu"), with_token_types=False, max_length=limit)
    if not should_compile(settings, loader, len(trials), encoder, on_cuda):
        return None
    in_layer = sum(p.numel() for p in initial.structure.layer_parameters(1).values())
    in_tokens = settings.packed and on_cuda and is_packable(encoder.config)
    layer_weights = len(trials) * depth * in_layer
    sizes, known = plan_sizes(loader, len(trials), layer_weights, in_tokens, True, settings.similar_stacks)
    new = tuple(sorted(set(sizes.tolist()) - known))
    if not new:
        return None
    rows = ROW_MULTIPLE + max(map(len, used_token_ids(trials, data)))
    parameters = len(trials) * (in_layer + rows * encoder.config.hidden_size)
    pooler = initial.structure.family.pooler
    return CompileJob(
        config=encoder.config,
        has_pooler=pooler is not None and getattr(encoder, pooler, None) is not None,
        depth=depth,
        trials=tuple(dataclasses.replace(trial, surgery=Surgery()) for trial in trials),
        data=data,
        device=device,
        settings=dataclasses.replace(
            settings, compiled=True, graphs=False, slots=None, checkpoint_folder=None
        ),
        sizes=new,
        device_bytes=BYTES_PER_PARAMETER * parameters + CUDA_PROCESS_BYTES,
    )


def run_job(job: CompileJob) -> None:
    """Compile in this process."""
    config = copy.deepcopy(job.config)
    config.num_hidden_layers = 1
    pooler: dict[str, Any] = {} if job.has_pooler else {"add_pooling_layer": False}
    try:
        encoder = AutoModel.from_config(config, attn_implementation="eager", **pooler)
    except TypeError:  # this family has no such option
        encoder = AutoModel.from_config(config, attn_implementation="eager")
    device = torch.device(job.device)
    trainer = StackTrainer(job.trials, encoder.float().eval(), job.data, device, job.settings)
    if isinstance(trainer.optimizer, FlatAdamW):
        _widen_bucket(trainer, job.depth)
    loader = trainer.train_loader
    smallest = int(loader.step_sizes(trainer.size_in_tokens).argmin())
    for size in job.sizes:  # a step whose batch fits into every size
        trainer.step_on_device.fill_(smallest)
        trainer.train_step(size)


def _widen_bucket(trainer: StackTrainer, depth: int) -> None:
    """Give the small parameters, which are columns of one tensor, the strides that they have in `depth` layers."""
    assert isinstance(trainer.optimizer, FlatAdamW)
    bucket, parameters = trainer.optimizer.bucket, trainer.parameters
    in_layer = sum(
        width
        for i, width in zip(bucket.indices, bucket.widths, strict=True)
        if trainer.initial_weights.layer_of(parameters[i].name)
    )
    trials, width = bucket.param.shape
    wide = bucket.param.new_zeros(trials, width + (depth - 1) * in_layer)
    wide[:, :width] = bucket.param
    for member, i in enumerate(bucket.indices):
        parameters[i].param.data = ParameterBucket.view(bucket, wide, member)


class CompileProcess:
    """A process that compiles, and ends with the process that started it, however that ends."""

    def __init__(self, job: CompileJob) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; from whichlayers.engine.compile_ahead import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal only reaches the main process
        )
        assert self.process.stdin is not None
        pickle.dump(job, self.process.stdin)
        self.process.stdin.flush()  # it stays open: its end tells the process that this one has ended

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout: float) -> int:
        """Wait for the process, kill it after `timeout` seconds, and return its exit status."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait()


def main() -> None:
    """The main function of the process: its input is a pickled `CompileJob`."""
    job = pickle.load(sys.stdin.buffer)

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    run_job(job)
    os._exit(0)  # without waiting for the reading thread
