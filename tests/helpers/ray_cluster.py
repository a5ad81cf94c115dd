"""A real Ray cluster of several nodes on this machine, and a loop that kills its workers and nodes at random."""

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
    """A head node without CPUs, and worker nodes of one CPU each."""

    def __init__(self, nodes: int) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self.mark = uuid.uuid4().hex
        paths = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]
        before = {name: os.environ.get(name) for name in ("PYTHONPATH", MARK, "RAY_USAGE_STATS_ENABLED")}
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, before["PYTHONPATH"] or ""])
        os.environ[MARK] = self.mark  # inherited by its processes, to recognize them
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        self.before = before
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.client_port = free.getsockname()[1]
        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        head["ray_client_server_port"] = self.client_port
        self.ray = RayCluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add_node() for _ in range(nodes)]

    @property
    def address(self) -> str:
        return self.ray.address

    def add_node(self):
        return self.ray.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

    def workers(self) -> list[int]:
        """Process ids of the RayWorker actors of this cluster."""
        pids = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                in_cluster = self.mark.encode() in (process / "environ").read_bytes()
                if in_cluster and b"ray::RayWorker" in (process / "cmdline").read_bytes():
                    pids.append(int(process.name))
        return pids

    def replace_random_node(self, rng: random.Random) -> None:
        node = rng.choice(self.nodes)
        self.nodes.remove(node)
        self.ray.remove_node(node, allow_graceful=False)
        self.nodes.append(self.add_node())

    def close(self) -> None:
        self.ray.shutdown()
        for name, value in self.before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def run_with_random_kills(
    cluster: Cluster,
    start: Callable[[], subprocess.Popen[bytes]],
    rng: random.Random,
    pause: tuple[float, float],
    max_kills: int,
) -> dict[str, int]:
    """Start a run and kill workers, nodes and the run itself at random times until the study is complete.

    The run is another process because Ray nodes must be started in the main thread.

    Args:
        cluster: The cluster.
        start: Starts or resumes the run.
        rng: Chooses what is killed and when.
        pause: Range of the seconds between two kills.
        max_kills: Stop killing after so many.

    Returns:
        How many workers, nodes and runs were killed.
    """
    kills = {"workers": 0, "nodes": 0, "runs": 0}
    process = start()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, messages = process.communicate(timeout=rng.uniform(*pause))
            assert process.returncode == 0, messages.decode()
            return kills
        if sum(kills.values()) >= max_kills:
            continue
        choice, alive = rng.random(), cluster.workers()
        if choice < 0.15:
            cluster.replace_random_node(rng)
            kills["nodes"] += 1
        elif choice < 0.3:
            process.kill()
            process.communicate()
            kills["runs"] += 1
            process = start()
        elif alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(alive), signal.SIGKILL)
                kills["workers"] += 1
