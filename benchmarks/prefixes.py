"""What a shared prefix saves: on the same sequence, on a busy one, and for many clients at once.

`python -m benchmarks.prefixes` prints one line a figure; the model has random weights and 135M dimensions.
"""

import asyncio
import statistics
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.daemon import random_model, serving
from benchmarks.report import say
from benchmarks.stream import connect

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
LENGTHS = (1000, 1500)
ROUNDS = 5


def main() -> None:
    """Measure everything on one model."""
    with serving(random_model("q8_0"), "--capacity", "8", "--context-tokens", "2048") as socket:
        for length in LENGTHS:
            uvloop.run(_second_request(socket, length))
        uvloop.run(_many(socket, 20))


def prefix(length: int, number: int) -> list[int]:
    """Return a prefix that no other number has."""
    return [300 + (number * 131 + place * 7) % 40_000 for place in range(length)]


async def _second_request(socket: Path, length: int) -> None:
    """A second request that shares a prefix with one that is done, or that still runs."""
    client, holder = await connect(socket), await connect(socket)
    cold, warm, busy = [], [], []
    for turn in range(ROUNDS):
        shared = prefix(length, length + turn)
        cold.append((await client.stream(tokens=[*shared, 301, 302], max_tokens=2, **GREEDY)).first_ms)
        warm.append((await client.stream(tokens=[*shared, 303, 304], max_tokens=2, **GREEDY)).first_ms)
        started = asyncio.Event()
        other = prefix(length, 10_000 + length + turn)
        running = asyncio.create_task(holder.stream(started, tokens=[*other, 301], max_tokens=200, **GREEDY))
        await started.wait()
        busy.append((await client.stream(tokens=[*other, 305, 306], max_tokens=2, **GREEDY)).first_ms)
        await running
    base = statistics.median(cold)
    say(f"prefix of {length}: first token, cold, p50 ms", base)
    say("  on its own sequence, percent of cold", 100 * statistics.median(warm) / base, 100 * max(warm) / base)
    say("  while its sequence is busy, percent of cold", 100 * statistics.median(busy) / base, 100 * max(busy) / base)
    await client.close()
    await holder.close()


async def _many(socket: Path, count: int) -> None:
    """Clients with one system prompt of 500 tokens and questions of their own, all at once."""
    clients = [await connect(socket) for _ in range(count)]
    system = prefix(500, 77)
    asked = [
        client.call("infer", {"tokens": [*system, 400 + number, 500], "max_tokens": 4, **GREEDY})
        for number, client in enumerate(clients)
    ]
    usages = [answer["result"]["usage"] for answer in await asyncio.gather(*asked)]
    computed = sum(usage["prompt_tokens"] - usage["cached_tokens"] for usage in usages)
    say(f"{count} clients with a system prompt of 500 tokens: prompt tokens computed in all", computed)
    for client in clients:
        await client.close()


if __name__ == "__main__":
    main()
