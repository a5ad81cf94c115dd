"""A real Ray cluster of several nodes on this machine, and someone who kills its workers and nodes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

MARK = "WHICHLAYERS_CLUSTER"
STORE_BYTES = 80_000_000


class Cluster:
    """A head that trains nothing, and nodes of one CPU each."""

    def __init__(self, nodes: int) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self.mark = uuid.uuid4().hex
        paths = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]
        before = {name: os.environ.get(name) for name in ("PYTHONPATH", MARK, "RAY_USAGE_STATS_ENABLED")}
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, before["PYTHONPATH"] or ""])
        os.environ[MARK] = self.mark  # its processes inherit it, and can be told from others
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        self.before = before
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.client_port = free.getsockname()[1]
        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        head["ray_client_server_port"] = self.client_port
        self.ray = RayCluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add() for _ in range(nodes)]

    @property
    def address(self) -> str:
        return self.ray.address

    def add(self):
        return self.ray.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

    def workers(self) -> list[int]:
        """Processes of this cluster in which an actor of ours lives."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                ours = self.mark.encode() in (process / "environ").read_bytes()
                if ours and b"ray::RayWorker" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        return found

    def replace_a_node(self, draw: random.Random) -> None:
        node = draw.choice(self.nodes)
        self.nodes.remove(node)
        self.ray.remove_node(node, allow_graceful=False)
        self.nodes.append(self.add())

    def close(self) -> None:
        self.ray.shutdown()
        for name, value in self.before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def run_disturbed(
    cluster: Cluster,
    start: Callable[[], subprocess.Popen[bytes]],
    draw: random.Random,
    pause: tuple[float, float],
    most: int,
) -> dict[str, int]:
    """Start a driver and kill workers, whole nodes and the driver itself at random moments, till it is done
    or `most` were killed.

    Nodes must be started by the main thread, so that the driver is another process.
    """
    kills = {"workers": 0, "nodes": 0, "drivers": 0}
    driver = start()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, messages = driver.communicate(timeout=draw.uniform(*pause))
            assert driver.returncode == 0, messages.decode()
            return kills
        if sum(kills.values()) >= most:
            continue
        what, alive = draw.random(), cluster.workers()
        if what < 0.15:
            cluster.replace_a_node(draw)
            kills["nodes"] += 1
        elif what < 0.3:
            driver.kill()
            driver.communicate()
            kills["drivers"] += 1
            driver = start()
        elif alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice(alive), signal.SIGKILL)
                kills["workers"] += 1
