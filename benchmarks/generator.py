"""The load generator in a process of its own, so that no target shares its interpreter, and single streams."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import uvloop
from msgspec import Struct

from car_client.carctl.bench import generator
from car_client.carctl.bench.figures import Figures, TimedAnswer
from car_client.carctl.bench.workload import PlannedRequest, Workload

COMMAND = (sys.executable, "-m", "benchmarks.generator")
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
SHORT = [400] * 16


class Job(Struct):
    """The commands to the process."""

    address: str
    workload: Workload


def generate(address: str, workload: Workload) -> Figures:
    """Run a workload against a socket path or a URL."""
    job = msgspec.json.encode(Job(address, workload))
    done = subprocess.run(COMMAND, input=job, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout, type=Figures)


async def stream(
    address: str, prompt: list[int], max_tokens: int, options: dict[str, Any], started: asyncio.Event | None = None
) -> TimedAnswer:
    """Return one answer, on a connection of its own; `started` is set with the first piece."""
    target = await generator.connect(address, options)
    try:
        return await target.stream(PlannedRequest(prompt, max_tokens).params, started)
    finally:
        await target.aclose()


async def embedded(address: str, batches: Sequence[list[str]]) -> float:
    """Return the seconds in which all batches are embedded one after the other, on one connection."""
    target = await generator.connect(address, {})
    try:
        return sum([(await target.whole({"input": batch})).seconds for batch in batches])
    finally:
        await target.aclose()


async def decoders(
    address: str, count: int, max_tokens: int, options: dict[str, Any]
) -> "asyncio.Future[list[TimedAnswer]]":
    """Start streams with short prompts and return once all of them decode."""
    started = [asyncio.Event() for _ in range(count)]
    running = asyncio.gather(*(stream(address, SHORT, max_tokens, options, event) for event in started))
    for event in started:
        await event.wait()
    return running


def main() -> None:
    """Read a job, run it, print its figures."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    print(msgspec.json.encode(uvloop.run(generator.generate(job.address, job.workload))).decode())


if __name__ == "__main__":
    main()
