"""The load generator in a process of its own: `generate` starts it, so that no target shares its interpreter."""

import subprocess
import sys

import msgspec
import uvloop
from msgspec import Struct

from car_client.carctl.load import generator
from car_client.carctl.load.endpoint import Endpoint
from car_client.carctl.load.figures import Figures
from car_client.carctl.load.workload import Workload

COMMAND = (sys.executable, "-m", "benchmarks.generator")


class Job(Struct):
    """The commands to the process."""

    endpoint: Endpoint
    workload: Workload


def generate(address: str, workload: Workload) -> Figures:
    """Run a workload against a socket path or a URL."""
    job = msgspec.json.encode(Job(Endpoint(address), workload))
    done = subprocess.run(COMMAND, input=job, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout, type=Figures)


def main() -> None:
    """Read a job, run it, print its figures."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    print(msgspec.json.encode(uvloop.run(generator.generate(job.endpoint, job.workload))).decode())


if __name__ == "__main__":
    main()
