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


class Job(Struct):
    """What the process is told."""

    endpoint: Endpoint
    workload: Workload


def generate(address: str, workload: Workload) -> Figures:
    """Run a workload against a socket path or a URL."""
    return msgspec.json.decode(run_module("benchmarks.generator", Job(Endpoint(address), workload)), type=Figures)


def run_module(name: str, job: Struct) -> bytes:
    """Return what a module prints that reads its job from standard input."""
    command = [sys.executable, "-m", name]
    return subprocess.run(command, input=msgspec.json.encode(job), check=True, stdout=subprocess.PIPE).stdout


def main() -> None:
    """Read a job, run it, print its figures."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    print(msgspec.json.encode(uvloop.run(generator.generate(job.endpoint, job.workload))).decode())


if __name__ == "__main__":
    main()
