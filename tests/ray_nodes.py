"""A Ray cluster on this machine: a head without cores and nodes of two; run with a folder and the path of a token.

Prints its address, then obeys a command a line and prints `done`: `add LABEL`, `kill LABEL` (a raylet), `head` (its
GCS). Without a token (an empty path) it takes every client.
"""

import os
import sys
from pathlib import Path
from typing import Any

CORES = 2


def main(folder: str, token: str) -> None:
    """Start the cluster and obey."""
    # Before Ray is imported, because it reads its variables then.
    os.environ["RAY_AUTH_MODE"] = "token" if token else "disabled"
    os.environ["RAY_AUTH_TOKEN_PATH"] = token
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # In place of the folder that a cluster of this machine's user has.
    os.environ["RAY_TMPDIR"] = folder
    Path(folder, "ray").mkdir()
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    head = cluster.add_node(num_cpus=0, include_dashboard=False)
    nodes: dict[str, Any] = {}
    print(cluster.address, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["add", label]:
                nodes[label] = cluster.add_node(num_cpus=CORES, labels={"pool": label})
            case ["kill", label]:
                nodes.pop(label).kill_raylet()
            case ["head"]:
                head.kill_gcs_server()
        print("done", flush=True)
    for node in [*nodes.values(), head]:
        node.kill_all_processes(check_alive=False, allow_graceful=False)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
