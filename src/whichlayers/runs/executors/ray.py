"""Executor on a Ray cluster: one actor per GPU, or one per CPU if there is no GPU.

    --on ray                 a local Ray instance; if RAY_ADDRESS is set, the cluster at that address
    --on ray://HOST:PORT     a remote cluster, through its client server

Models and data are put into Ray's object store and sent to each worker once. A worker that dies, alone or with its
node, is replaced when the cluster has room; its stack goes to any free worker. Only the main process writes results.db.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whichlayers.errors import WhichlayersError
from whichlayers.runs import machine
from whichlayers.runs.events import Note, OnEvent, StackDone, StackFailed, StackLost
from whichlayers.runs.executors.local import (
    MAX_START_FAILURES,
    MAX_WORKER_DEATHS,
    POLL_SECONDS,
    Executor,
    FreeWorker,
)
from whichlayers.runs.executors.ray_worker import AssetBundle, RayWorker, WorkerInfo, bundle_assets
from whichlayers.runs.executors.worker import MeasureMemory, WorkerConfig
from whichlayers.runs.plan import Stack, StackSizes, representative_trials
from whichlayers.runs.resources import MAX_STACK_CPU, MAX_STACK_CUDA, Resources, worker_bytes
from whichlayers.trial import Trial

INSTALL = "Ray is not installed: pip install 'ray[client]>=2.40'"  # as in pyproject.toml
EVENT_SECONDS = 2.0  # how long an actor waits for events before it returns none
JOIN_SECONDS = 20.0  # how long to wait for further workers after the first one has joined
MAX_SECONDS_WITHOUT_WORKERS = 600.0
LOW_MEMORY = "running low on memory"  # in Ray's error message when it kills a worker to free memory


@dataclass
class RayWorkerHandle:
    """One worker; when its actor dies, it is replaced by a new handle."""

    actor: Any
    pending: Any  # reference to the reply of the actor's current call; None if it has no call
    info: WorkerInfo | None = None  # None: the actor has not joined yet
    stack: Stack | None = None
    stack_sizes: StackSizes | None = None  # None: as planned


class RayExecutor(Executor):
    """Runs stacks on the workers of a Ray cluster.

    Args:
        ray: The connected ray module.
        device: "cpu", "cuda" or None: GPUs if the cluster has any.
        workers: Number of workers; None: one per GPU or CPU.
        max_stack: Maximum number of trials in a stack; None: a default.
        trials: The trials to run, to measure their memory.
        assets: Models and data.
        config: The configuration of workers, except for their device.
        folder: Study folder; identifies the study's files on other machines.
        on_event: Called with notes for the user.
    """

    def __init__(
        self,
        ray: Any,
        device: str | None,
        workers: int | None,
        max_stack: int | None,
        trials: Sequence[Trial],
        assets: Any,
        config: WorkerConfig,
        folder: Path,
        on_event: OnEvent,
    ) -> None:
        self.ray, self.on_event = ray, on_event
        cluster = ray.cluster_resources()
        gpus, cpus = int(cluster.get("GPU", 0)), int(cluster.get("CPU", 0))
        self.on_gpu = device != "cpu" and (gpus > 0 or device is not None)
        available = gpus if self.on_gpu else cpus
        if not available:
            raise WhichlayersError(
                f"the Ray cluster has no {'GPU' if self.on_gpu else 'CPU'}: check it with `ray status`"
            )
        device = "cuda" if self.on_gpu else "cpu"
        config = dataclasses.replace(config, device=device, threads=1)
        super().__init__(config, workers=min(workers or available, available))
        self.max_stack = max_stack or (MAX_STACK_CUDA if self.on_gpu else MAX_STACK_CPU)
        self.weights_bytes = assets.weights_bytes
        bundle: AssetBundle | None = None if assets.index is None else bundle_assets(assets, ray.put)
        run_key = hashlib.blake2b(
            f"{socket.gethostname()}:{folder.resolve()}".encode(), digest_size=8
        ).hexdigest()
        options = {"num_cpus": 1, "num_gpus": int(self.on_gpu), "max_restarts": 0}
        actor_class = ray.remote(RayWorker).options(**options)
        self.request = MeasureMemory(representative_trials(trials), (), self.max_stack)
        self.make_actor = lambda: actor_class.remote(config, bundle, run_key)
        self.worker_deaths = self.start_failures = 0  # consecutive
        self.last_joined = time.monotonic()  # the last time at which any worker was available
        self.handles = [self._new_handle() for _ in range(self.workers)]

    def _new_handle(self) -> RayWorkerHandle:
        actor = self.make_actor()
        return RayWorkerHandle(actor, actor.join.remote(self.request))

    # --- before the first stack ---

    def resources(self) -> Resources:
        """Wait for workers and return their resources; workers that join later are used as well."""
        first: float | None = None
        while not all(handle.info for handle in self.handles):
            self.poll()
            if any(handle.info for handle in self.handles):
                first = first or time.monotonic()
                if time.monotonic() - first > JOIN_SECONDS:
                    break
        known = [handle.stack_sizes for handle in self.handles if handle.stack_sizes]
        stack_sizes = tuple(sizes for sizes in known if sizes.fitting)  # where memory could be measured
        return Resources((self.config.device,), self.workers, 1, self.max_stack, stack_sizes)

    def device_names(self) -> list[str]:
        """The devices of the workers, such as "4 x cuda (NVIDIA A100) on Ray"."""
        names = [handle.info.device for handle in self.handles if handle.info]
        return [f"{names.count(name)} x {name} on Ray" for name in dict.fromkeys(names)]

    # --- as an executor ---

    def free_workers(self) -> list[FreeWorker]:
        return [
            FreeWorker(number, handle.stack_sizes)
            for number, handle in enumerate(self.handles)
            if handle.info is not None and handle.stack is None
        ]

    def announce(self, stack: Stack, worker: FreeWorker) -> None:
        self.handles[worker.number].actor.announce.remote(stack)

    def start(self, stack: Stack, worker: FreeWorker) -> None:
        handle = self.handles[worker.number]
        handle.stack = stack
        handle.actor.start.remote(stack)
        handle.pending = handle.actor.poll.remote(EVENT_SECONDS)

    def poll(self) -> None:
        pending = {h.pending: number for number, h in enumerate(self.handles) if h.pending is not None}
        if not pending:
            time.sleep(POLL_SECONDS)
            return
        ready, _ = self.ray.wait(list(pending), num_returns=1, timeout=POLL_SECONDS)
        if ready:
            ready, _ = self.ray.wait(list(pending), num_returns=len(pending), timeout=0)
        for reference in ready:
            self._read(pending[reference], reference)
        if any(handle.info for handle in self.handles):
            self.last_joined = time.monotonic()
        elif time.monotonic() - self.last_joined > MAX_SECONDS_WITHOUT_WORKERS:
            raise WhichlayersError(
                f"no worker could start on the Ray cluster for {MAX_SECONDS_WITHOUT_WORKERS:.0f} seconds: check that"
                " its nodes are alive and free (ray status), then run the study again; finished trials are kept"
            )

    def _read(self, number: int, reference: Any) -> None:
        """Process the reply of a worker: its metadata, or its events."""
        handle = self.handles[number]
        try:
            reply = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            self._handle_death(number, error)
        else:
            if isinstance(reply, WorkerInfo):
                self._handle_joined(handle, reply)
                return
            for event in reply:
                if isinstance(event, StackDone | StackFailed):
                    handle.stack, self.worker_deaths = None, 0
                self.emit(event)
            handle.pending = None if handle.stack is None else handle.actor.poll.remote(EVENT_SECONDS)

    def _handle_joined(self, handle: RayWorkerHandle, info: WorkerInfo) -> None:
        """Compute the stack sizes of a worker that has joined; note differing versions."""
        handle.info, handle.pending, self.start_failures = info, None, 0
        free: float | None = info.memory.free
        if free is not None and not self.on_gpu:
            free = free / min(self.workers, self._cpus_of(info.node)) - worker_bytes(self.weights_bytes)
        handle.stack_sizes = StackSizes.from_memory(
            self.request.trials, info.memory.costs, free, self.max_stack
        )
        if info.memory_error:
            first_line = info.memory_error.partition("\n")[0]
            self.on_event(Note(f"the worker on {info.host} could not measure its memory: {first_line}"))
        own_versions = machine.versions()
        different = [f"{k} {v}" for k, v in info.versions.items() if own_versions.get(k) != v]
        if different:
            self.on_event(
                Note(
                    f"the worker on {info.host} has other versions than this machine: {', '.join(different)}"
                )
            )

    def _cpus_of(self, node: str) -> int:
        cpus = [n["Resources"].get("CPU", 1) for n in self.ray.nodes() if n["NodeID"] == node]
        return max(1, int(cpus[0])) if cpus else 1

    def _handle_death(self, number: int, error: BaseException) -> None:
        """Replace a worker that died and report its stack; stop the run after many deaths in a row."""
        handle = self.handles[number]
        with contextlib.suppress(Exception):  # in case the actor is still alive
            self.ray.kill(handle.actor)
        reason = f"the Ray worker{'' if handle.info is None else f' on {handle.info.host}'} died"
        message = str(error).strip()
        self.handles[number] = self._new_handle()
        if handle.info is None:
            if "creation task" not in message:  # it was killed before it started, not a failure of its own
                return
            self.start_failures += 1
            if self.start_failures >= MAX_START_FAILURES:
                raise WhichlayersError(
                    "workers cannot start on the Ray cluster: check that whichlayers is installed on its"
                    f" nodes\n{message}"
                )
            return
        self.worker_deaths += 1
        if self.worker_deaths >= MAX_WORKER_DEATHS * self.workers:
            raise WhichlayersError(
                f"{self.worker_deaths} Ray workers in a row died without finishing a stack; the run is stopped, and"
                f" finished trials are kept. Last error: {message}\nTry a smaller --max-stack"
            )
        if handle.stack is not None and LOW_MEMORY in message:
            self.emit(StackFailed(handle.stack.number, f"{reason}\n{message}", out_of_memory=True))
        elif handle.stack is not None:
            self.emit(StackLost(handle.stack.number, reason, message))

    def clean_up(self) -> None:
        """Delete the study's files on the workers' disks."""
        actors = {handle.info.node: handle.actor for handle in self.handles if handle.info}
        with contextlib.suppress(Exception):
            self.ray.get([actor.clean_up.remote() for actor in actors.values()], timeout=20)

    def close(self) -> None:
        for handle in self.handles:
            with contextlib.suppress(Exception):
                self.ray.kill(handle.actor)
        self.handles = []


def parse_ray_address(on: str, device: str | None) -> str | None:
    """The address of the cluster that `--on` names; None: start a local Ray instance.

    Raises:
        WhichlayersError: `on` or `device` is not allowed.
    """
    if device is not None and device not in ("cpu", "cuda"):
        raise WhichlayersError(f"--device {device}: on Ray, give cpu or cuda; Ray chooses the devices")
    if on == "ray":
        return os.environ.get("RAY_ADDRESS")
    if on.startswith("ray://") and len(on) > len("ray://"):
        return on
    raise WhichlayersError(f"--on {on}: give this, ray or ray://HOST:PORT")


@contextlib.contextmanager
def ray_session(address: str | None) -> Iterator[Any]:
    """Connect to Ray and yield the ray module; an existing connection is used and stays open."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise WhichlayersError(INSTALL) from None
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"include_dashboard": False, "num_cpus": machine.usable_cores()}
    sigterm_handler = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(address or "local", **options)
        except ConnectionError:  # a client server may take longer than Ray waits to accept another client
            ray.init(address or "local", **options)
    except Exception as error:  # many types: unknown host, different versions, no client server
        raise WhichlayersError(
            f"cannot connect to Ray at {address or 'this machine'} ({error}): check that it is running (ray status)"
            " with the same versions of Ray and Python as here"
        ) from error
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, sigterm_handler)  # Ray installs its own handler
    try:
        yield ray
    finally:
        ray.shutdown()


def is_single_machine(ray: Any) -> bool:
    """Whether all nodes of the cluster are this machine, and so share its disk."""
    return {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]} == {socket.gethostname()}
