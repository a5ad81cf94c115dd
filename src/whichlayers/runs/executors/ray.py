"""Stacks train on a Ray cluster: one actor a GPU, or one a CPU where there is no GPU.

    --on ray                 a Ray of this machine's own; with RAY_ADDRESS set, the cluster that it names
    --on ray://HOST:PORT     a cluster elsewhere, through its client server

Model and data lie in Ray's object store and reach each worker once. A worker that dies, alone or with its node,
is replaced when the cluster has room; its stack goes to whoever is free. Only this process writes results.db.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import socket
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whichlayers.errors import WhichlayersError
from whichlayers.runs import machine
from whichlayers.runs.events import Emit, Note, OnEvent, StackDone, StackFailed, StackLost
from whichlayers.runs.executors.local import DEATHS_IN_A_ROW, PATIENCE, STILLBIRTHS_IN_A_ROW, Place
from whichlayers.runs.executors.ray_worker import Joined, RayWorker
from whichlayers.runs.executors.transfer import Parcel, packed
from whichlayers.runs.executors.worker import Measure, Setup
from whichlayers.runs.plan import Stack, memory_key
from whichlayers.runs.resources import MOST_TRIALS, MOST_TRIALS_ELSEWHERE, PROCESS_BYTES, Means, kinds_of
from whichlayers.trial import Trial

INSTALL = "Ray is not installed: pip install 'ray[client]>=2.40'"  # as in pyproject.toml
NEWS_SECONDS = 2.0  # that an actor waits before it says that there is no news
GRACE = 20.0  # seconds that others are waited for when the first worker has joined
SECONDS_WITHOUT_WORKERS = 600.0
LOW_MEMORY = "running low on memory"  # what Ray says when it ends a worker before the system does


@dataclass
class Seat:
    """One worker as the driver sees it; its actor changes when one dies."""

    actor: Any
    asked: Any  # reference to the answer that is due
    joined: Joined | None = None
    stack: Stack | None = None
    sizes: dict[Hashable, int] = field(default_factory=dict)


class RayPool:
    def __init__(
        self,
        ray: Any,
        device: str | None,
        workers: int | None,
        max_stack: int | None,
        trials: Sequence[Trial],
        subjects: Any,
        setup: Setup,
        folder: Path,
        on_event: OnEvent,
    ) -> None:
        """`setup` says all but the device; `folder` of the study, to know its traces on other machines."""
        self.ray, self.on_event = ray, on_event
        self.emit: Emit = lambda event: None
        resources = ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        self.on_gpu = device != "cpu" and (gpus > 0 or device is not None)
        there = gpus if self.on_gpu else cpus
        if not there:
            raise WhichlayersError(f"the Ray cluster has no {'GPU' if self.on_gpu else 'CPU'} to give")
        self.workers = min(workers or there, there)
        self.max_stack = max_stack or (MOST_TRIALS["cuda"] if self.on_gpu else MOST_TRIALS_ELSEWHERE)
        self.weights_bytes = subjects.weights_bytes
        parcel: Parcel | None = None if subjects.catalogue is None else packed(subjects, ray.put)
        run_key = hashlib.blake2b(
            f"{socket.gethostname()}:{folder.resolve()}".encode(), digest_size=8
        ).hexdigest()
        asked = {"num_cpus": 1, "num_gpus": int(self.on_gpu), "max_restarts": 0}
        actor, device = ray.remote(RayWorker).options(**asked), "cuda" if self.on_gpu else "cpu"
        setup = Setup(
            setup.engine, device, 1, None, setup.checkpoints, setup.checkpoint_seconds, setup.encoders
        )
        self.order = Measure(kinds_of(trials), (), self.max_stack)
        self.make_actor = lambda: actor.remote(setup, parcel, run_key)
        self.deaths_in_a_row = self.stillbirths_in_a_row = 0
        self.last_sign = time.monotonic()  # of a worker that is there
        self.seats = [self._new_seat() for _ in range(self.workers)]

    def _new_seat(self) -> Seat:
        actor = self.make_actor()
        return Seat(actor, actor.join.remote(self.order))

    # --- before the first stack ---

    def means(self) -> Means:
        """What the workers that have joined can do; others that join later are as welcome."""
        first: float | None = None
        while not all(seat.joined for seat in self.seats):
            self.pump()
            if any(seat.joined for seat in self.seats):
                first = first or time.monotonic()
                if time.monotonic() - first > GRACE:
                    break
        joined = [seat for seat in self.seats if seat.joined]
        sizes = {kind: max(seat.sizes.get(kind, 0) for seat in joined) for s in joined for kind in s.sizes}
        device = "cuda" if self.on_gpu else "cpu"
        return Means((device,), self.workers, 1, self.max_stack, sizes)

    def device_names(self) -> list[str]:
        names = [seat.joined.device for seat in self.seats if seat.joined]
        return [f"{names.count(name)} x {name} on Ray" for name in dict.fromkeys(names)]

    # --- as an executor ---

    def free(self) -> list[Place]:
        return [
            Place(number, self._size_for(seat))
            for number, seat in enumerate(self.seats)
            if seat.joined is not None and seat.stack is None
        ]

    def _size_for(self, seat: Seat) -> Any:
        means = Means(("any",), self.workers, 1, self.max_stack, seat.sizes)
        return means.size_for

    def start(self, stack: Stack, place: Place) -> None:
        seat = self.seats[place.number]
        seat.stack = stack
        seat.actor.begin.remote(stack)
        seat.asked = seat.actor.news.remote(NEWS_SECONDS)

    def pump(self) -> None:
        due = {seat.asked: number for number, seat in enumerate(self.seats) if seat.asked is not None}
        if not due:
            time.sleep(PATIENCE)
            return
        ready, _ = self.ray.wait(list(due), num_returns=1, timeout=PATIENCE)
        if ready:
            ready, _ = self.ray.wait(list(due), num_returns=len(due), timeout=0)
        for reference in ready:
            self._read(due[reference], reference)
        if any(seat.joined for seat in self.seats):
            self.last_sign = time.monotonic()
        elif time.monotonic() - self.last_sign > SECONDS_WITHOUT_WORKERS:
            raise WhichlayersError(
                f"no worker could start on the Ray cluster for {SECONDS_WITHOUT_WORKERS:.0f} seconds: are its"
                " nodes alive and free (ray status)? Nothing is lost; run the study again when they are"
            )

    def _read(self, number: int, reference: Any) -> None:
        seat = self.seats[number]
        try:
            answer = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            self._bury(number, error)
        else:
            if isinstance(answer, Joined):
                self._welcome(seat, answer)
                return
            for event in answer:
                if isinstance(event, StackDone | StackFailed):
                    seat.stack, self.deaths_in_a_row = None, 0
                self.emit(event)
            seat.asked = None if seat.stack is None else seat.actor.news.remote(NEWS_SECONDS)

    def _welcome(self, seat: Seat, joined: Joined) -> None:
        seat.joined, seat.asked, self.stillbirths_in_a_row = joined, None, 0
        own = 0.0 if self.on_gpu else PROCESS_BYTES + self.weights_bytes
        sharing = 1 if self.on_gpu else min(self.workers, self._cpus_of(joined.node))
        for trial, need in zip(self.order.kinds, joined.room.needs, strict=True):
            if need is not None and joined.room.free is not None:
                seat.sizes[memory_key(trial)] = need.fits(joined.room.free / sharing - own, self.max_stack)
        if joined.trouble:
            first_line = joined.trouble.partition("\n")[0]
            self.on_event(Note(f"the worker on {joined.host} could not measure its memory: {first_line}"))
        here = machine.versions()
        other = [f"{k} {v}" for k, v in joined.versions.items() if here.get(k) != v]
        if other:
            self.on_event(Note(f"the worker on {joined.host} has {', '.join(other)}, other than here"))

    def _cpus_of(self, node: str) -> int:
        found = [n["Resources"].get("CPU", 1) for n in self.ray.nodes() if n["NodeID"] == node]
        return max(1, int(found[0])) if found else 1

    def _bury(self, number: int, error: BaseException) -> None:
        seat = self.seats[number]
        with contextlib.suppress(Exception):  # if it lives on somewhere, it shall not
            self.ray.kill(seat.actor)
        reason = f"the Ray worker{'' if seat.joined is None else f' on {seat.joined.host}'} died"
        words = str(error).strip()
        self.seats[number] = self._new_seat()
        if seat.joined is None:
            if "creation task" not in words:  # killed before it was there: not its own fault
                return
            self.stillbirths_in_a_row += 1
            if self.stillbirths_in_a_row >= STILLBIRTHS_IN_A_ROW:
                raise WhichlayersError(
                    f"workers cannot start on the Ray cluster; is whichlayers installed on its nodes?\n{words}"
                )
            return
        self.deaths_in_a_row += 1
        if self.deaths_in_a_row >= DEATHS_IN_A_ROW * self.workers:
            raise WhichlayersError(
                f"{self.deaths_in_a_row} Ray workers in a row died and no stack came to its end between; the"
                f" study is stopped and nothing is lost. The last one: {words}\nTry a smaller --max-stack"
            )
        if seat.stack is not None and LOW_MEMORY in words:
            self.emit(StackFailed(seat.stack.number, f"{reason}\n{words}", out_of_memory=True))
        elif seat.stack is not None:
            self.emit(StackLost(seat.stack.number, reason, words))

    def clean(self) -> None:
        """The study is complete: its traces on the workers' disks go."""
        nodes = {seat.joined.node: seat.actor for seat in self.seats if seat.joined}
        with contextlib.suppress(Exception):
            self.ray.get([actor.clean.remote() for actor in nodes.values()], timeout=20)

    def close(self) -> None:
        for seat in self.seats:
            with contextlib.suppress(Exception):
                self.ray.kill(seat.actor)
        self.seats = []


def checked_ray(on: str, device: str | None) -> str | None:
    """The address that `--on` names: None for a Ray of this machine's own."""
    if device is not None and device not in ("cpu", "cuda"):
        raise WhichlayersError(f"--device {device}: on Ray give cpu or cuda; Ray chooses which")
    if on == "ray":
        return os.environ.get("RAY_ADDRESS")
    if on.startswith("ray://") and len(on) > len("ray://"):
        return on
    raise WhichlayersError(f"--on {on}: give this, ray or ray://HOST:PORT")


@contextlib.contextmanager
def ray_at(address: str | None) -> Iterator[Any]:
    """Ray, connected; a connection that was there before stays."""
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
    stop = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(address or "local", **options)
        except ConnectionError:  # a client server may take longer than Ray waits to make room for one more
            ray.init(address or "local", **options)
    except Exception as error:  # many kinds: no such host, other versions, no client server there
        raise WhichlayersError(
            f"Ray at {address or 'this machine'} cannot be reached ({error}): is it running (ray status), and"
            " of the same versions of Ray and Python as here?"
        ) from error
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, stop)  # Ray puts its own handler there
    try:
        yield ray
    finally:
        ray.shutdown()


def all_here(ray: Any) -> bool:
    """Whether all nodes of the cluster are this machine, and so share its disk."""
    return {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]} == {socket.gethostname()}
