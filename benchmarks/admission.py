"""Who waits for whom: urgent work among throughput work, a flood, a long prompt joining decoders, a burst.

`python -m benchmarks.admission` prints one line a figure; the model has random weights and 135M dimensions.
"""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import psutil
import uvloop

from benchmarks.daemon import random_model, serving
from benchmarks.report import say
from benchmarks.stream import Connection, StreamTimes, connect

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
SHORT = [400] * 16


def main() -> None:
    """Measure everything on one model."""
    model = random_model("q8_0")
    with serving(model, "--capacity", "8", "--context-tokens", "4096") as socket:
        uvloop.run(_urgent(socket))
        uvloop.run(_flood(socket))
        uvloop.run(_long_prompt(socket, 2000))
        uvloop.run(_long_prompt(socket, 4090))
    with serving(model, "--capacity", "2", config='[queue]\noverflow = "drop_newest"\n') as socket:
        uvloop.run(_burst(socket))


async def _urgent(socket: Path) -> None:
    """Time to first token of urgent work, idle and with every sequence held by throughput work."""
    urgent = await connect(socket)
    idle = [(await urgent.stream(tokens=SHORT, max_tokens=8, **GREEDY)).first_ms for _ in range(5)]
    holders = await _decoders(socket, 8, 400, priority="throughput")
    busy = [(await urgent.stream(tokens=SHORT, max_tokens=8, **GREEDY)).first_ms for _ in range(5)]
    gaps = [gap for times in await holders for gap in times.gaps_ms]
    await urgent.close()
    say("urgent, idle: first token p50 ms", statistics.median(idle))
    say("urgent, all sequences held by throughput work: first token p50 ms", statistics.median(busy), max(busy))
    say("  ratio to idle", statistics.median(busy) / statistics.median(idle))
    say("  step of the throughput work p50 ms", statistics.median(gaps))


async def _flood(socket: Path) -> None:
    """A client with short requests beside one with 64 of 60 tokens."""
    flood = [await connect(socket) for _ in range(64)]
    more: dict[str, Any] = {**GREEDY, "client": "flood"}
    running = [asyncio.create_task(one.stream(tokens=SHORT, max_tokens=60, **more)) for one in flood]
    polite = await connect(socket)
    alone_or_not = []
    while not all(one.done() for one in running):
        alone_or_not.append(await polite.stream(tokens=SHORT, max_tokens=8, client="polite", **GREEDY))
    await asyncio.gather(*running)
    totals = [times.seconds for times in alone_or_not]
    say(f"8 tokens beside a flood of 64 requests: total p50 s ({len(totals)})", statistics.median(totals), max(totals))
    say("  its wait in the queue p50 ms", statistics.median(one.queue_ms for one in alone_or_not))
    for one in (*flood, polite):
        await one.close()


async def _long_prompt(socket: Path, tokens: int) -> None:
    """A long prompt, alone and joining seven decoders."""
    prompt = [500 + n % 97 for n in range(tokens)]
    joiner = await connect(socket)
    alone = (await joiner.stream(tokens=prompt, max_tokens=4, **GREEDY)).first_ms
    decoders = await _decoders(socket, 7, 100 + tokens // 16)
    joined = (await joiner.stream(tokens=prompt, max_tokens=4, **GREEDY)).first_ms
    gaps = [gap for times in await decoders for gap in times.gaps_ms]
    await joiner.close()
    say(
        f"{tokens}-token prompt joining 7 decoders: worst gap ms (p99)",
        max(gaps),
        statistics.quantiles(gaps, n=100)[-1],
    )
    say("  its first token, ratio to alone", joined / alone)


async def _burst(socket: Path) -> None:
    """640 requests at once against a queue of 64."""
    watcher = await connect(socket)
    status = (await watcher.call("daemon/status", {}))["result"]
    daemon = psutil.Process(status["pid"])
    before = daemon.memory_info().rss
    connections = [await connect(socket) for _ in range(16)]
    refused: list[float] = []
    bursts = [asyncio.create_task(_burst_of(one, refused)) for one in connections]
    probes = []
    while not all(one.done() for one in bursts):
        asked = time.perf_counter()
        await watcher.call("inference/capacity", {})
        probes.append((time.perf_counter() - asked) * 1000)
        await asyncio.sleep(0)
    answered = sum(await asyncio.gather(*bursts))
    totals = (await watcher.call("daemon/status", {}))["result"]["totals"]
    say("burst of 640 against a queue of 64: answered", answered)
    say("  refusals ms p99", statistics.quantiles(refused, n=100)[-1], max(refused))
    say("  inference/capacity during it ms p99", statistics.quantiles(probes, n=100)[-1], max(probes))
    say("  memory growth MiB", (daemon.memory_info().rss - before) / 2**20)
    say("  received minus the sum of outcomes", totals["received"] * 2 - sum(totals.values()))
    for one in (*connections, watcher):
        await one.close()


async def _burst_of(connection: Connection, refused: list[float]) -> int:
    return await connection.burst(40, {"tokens": SHORT, "max_tokens": 8, **GREEDY}, refused)


async def _decoders(socket: Path, count: int, tokens: int, **more: Any) -> "asyncio.Future[list[StreamTimes]]":
    """Start streams and return once all of them decode; the result closes their connections."""
    started = [asyncio.Event() for _ in range(count)]

    async def one(event: asyncio.Event) -> StreamTimes:
        connection = await connect(socket)
        times = await connection.stream(event, tokens=SHORT, max_tokens=tokens, **GREEDY, **more)
        await connection.close()
        return times

    running = asyncio.gather(*(one(event) for event in started))
    for event in started:
        await event.wait()
    return running


if __name__ == "__main__":
    main()
