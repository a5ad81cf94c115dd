"""torch.compile: whether the layers of a stack are compiled, and how; where compiled code is kept between runs.

One encoder layer is compiled, and its code serves all layers. `compile_ahead.py` compiles before a stack's turn.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import stat
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from whichlayers.engine.dataloader import TrainDataLoader
from whichlayers.engine.settings import EngineSettings
from whichlayers.models.structure import ModelStructure

log = logging.getLogger(__name__)

COMPILE_SECONDS = 18.0  # for a size of steps that is new in this process
# Time that element-wise operations of a step take longer without torch.compile, per token, hidden unit and layer. An
# upper bound for an H200, where the compiled ones take 7e-11 s: a stack for which compiling might pay is compiled.
EAGER_SECONDS = 2.4e-10


def is_worth_compiling(tokens: int, hidden_size: int, depth: int, similar_stacks: int = 1) -> bool:
    """Whether compiled layers save more time than it takes to compile them.

    Steps are captured either way, so that the time to launch kernels does not matter. Short training of a small model
    is over before its code would be compiled.

    Args:
        tokens: Number of tokens of all steps and trials of the stack.
        hidden_size, depth: Of the model.
        similar_stacks: Number of stacks of the same shape, which share the compiled code.
    """
    return similar_stacks * tokens * hidden_size * depth * EAGER_SECONDS > COMPILE_SECONDS


def should_compile(
    settings: EngineSettings, loader: TrainDataLoader, trials: int, encoder: PreTrainedModel, on_cuda: bool
) -> bool:
    """Whether the layers of a stack are compiled: as the settings say, else on a GPU if it saves time.

    Args:
        settings: How the stack is run.
        loader: Its training batches.
        trials: Number of trials.
        encoder: The pretrained encoder.
        on_cuda: Whether the stack trains on a GPU.
    """
    if settings.compiled is not None:
        return settings.compiled
    if not on_cuda:
        return False
    tokens, depth = int(loader.step_tokens.sum()) * trials, ModelStructure(encoder).depth
    return is_worth_compiling(tokens, encoder.config.hidden_size, depth, settings.similar_stacks)


def keep_compiled_code() -> Path | None:
    """Let torch keep compiled code between runs in the user's own cache folder.

    The files are read with pickle, so only a private folder is used, never one inside a study. A folder that is set in
    TORCHINDUCTOR_CACHE_DIR is left as it is.

    Returns:
        The folder; None if torch's default is used.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # torch itself sets the variable to a folder in /tmp
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", default_cache_dir()) != default_cache_dir():
        return None
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whichlayers" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} does not belong to this user")
        folder.chmod(stat.S_IRWXU)
    except OSError as error:
        log.warning("compiled code is not kept between runs: %s", error)
        return None
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return folder


@functools.cache  # once per process
def warm_up_compiler() -> None:
    """Import torch's compiler and start its worker processes in a background thread; both take seconds."""
    keep_compiled_code()

    def load() -> None:
        importlib.import_module("torch._inductor.compile_fx")
        importlib.import_module("torch._inductor.async_compile").AsyncCompile.warm_pool()

    threading.Thread(target=load, daemon=True).start()


def compile_layers(encoder: nn.Module) -> None:
    """Compile the forward of the embeddings and layers for training; evaluation, whose shapes vary, stays eager."""
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    structure = ModelStructure(encoder)  # type: ignore[arg-type]
    modules = [*structure.layers, encoder.get_submodule(structure.family.embeddings[0])]
    for module in modules:
        if getattr(module, "uses_prefix_cache", False):
            continue  # it is skipped in training
        compiled = torch.compile(module.forward, dynamic=False)
        module.forward = _compiled_in_training(module, compiled, module.forward)


def _compiled_in_training(module: nn.Module, compiled: Any, eager: Any) -> Any:
    """A forward that calls `compiled` in training mode and `eager` in evaluation mode."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs) if module.training else eager(*args, **kwargs)

    return forward
