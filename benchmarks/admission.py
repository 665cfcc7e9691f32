"""Waiting times: urgent work among throughput work, a flood, a burst.

`python -m benchmarks.admission` prints one line a figure; the model has random weights and 135M dimensions.
"""

import asyncio
import statistics
import time
from pathlib import Path

import msgspec
import psutil
import uvloop

from benchmarks.generator import GREEDY, SHORT, decoders, stream
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from car_client import AsyncClient
from car_client.carctl.bench.figures import spread

BURST = (16, 40)


def main() -> None:
    """Measure everything on one model."""
    model, report = model_file("q8_0"), Report("admission")
    with serving(model, "--capacity", "8", "--context-tokens", "4096") as socket:
        uvloop.run(_urgent(str(socket), report))
        uvloop.run(_flood(str(socket), report))
    with serving(model, "--capacity", "2", config='[queue]\noverflow = "drop_newest"\n') as socket:
        uvloop.run(_burst(socket, report))
    report.close()


async def _urgent(address: str, report: Report) -> None:
    """Time to first token of urgent work, idle and with every sequence held by throughput work."""
    idle = [(await stream(address, SHORT, 8, GREEDY)).first_ms for _ in range(5)]
    holders = await decoders(address, 8, 400, {**GREEDY, "priority": "throughput"})
    busy = [(await stream(address, SHORT, 8, GREEDY)).first_ms for _ in range(5)]
    gaps = [gap for times in await holders for gap in times.gaps_ms]
    report.say("urgent, idle: first token p50 ms", statistics.median(idle))
    report.say("urgent, all sequences held by throughput work: first token p50 ms", statistics.median(busy), max(busy))
    report.say("  ratio to idle", statistics.median(busy) / statistics.median(idle))
    report.say("  step of the throughput work p50 ms", statistics.median(gaps))


async def _flood(address: str, report: Report) -> None:
    """A client with short requests beside one with 64 of 60 tokens."""
    running = asyncio.gather(*(stream(address, SHORT, 60, {**GREEDY, "client": "flood"}) for _ in range(64)))
    polite = []
    while not running.done():
        polite.append(await stream(address, SHORT, 8, {**GREEDY, "client": "polite"}))
    await running
    totals = [times.seconds for times in polite]
    report.say(f"8 tokens beside a flood of 64 requests: total p50 s ({len(totals)})", *_median_and_most(totals))
    waits = [times.queue_ms for times in polite if times.queue_ms is not None]
    report.say("  its wait in the queue p50 ms", statistics.median(waits))


async def _burst(socket: Path, report: Report) -> None:
    """640 requests at once against a queue of 64."""
    async with AsyncClient(socket) as watcher:
        daemon = psutil.Process((await watcher.status()).pid)
        before = daemon.memory_info().rss
        connections = [await asyncio.open_unix_connection(str(socket)) for _ in range(BURST[0])]
        refused: list[float] = []
        asked = asyncio.gather(*(_burst_of(BURST[1], *streams, refused) for streams in connections))
        probes = []
        while not asked.done():
            probes.append(await _capacity_ms(watcher))
        await asked
        totals = (await watcher.status()).totals
    report.say("burst of 640 against a queue of 64: refused", len(refused))
    report.say("  refusals ms p99", spread(refused).p99, max(refused))
    report.say("  inference/capacity during it ms p99", spread(probes).p99, max(probes))
    report.say("  memory growth MiB", (daemon.memory_info().rss - before) / 2**20)
    outcomes = totals.completed + totals.failed + totals.cancelled + totals.rejected + totals.in_flight
    report.say("  received minus the sum of outcomes", totals.received - outcomes)


async def _burst_of(
    count: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refused_ms: list[float]
) -> None:
    """Send requests in one write, and add the times of the answers that are refusals."""
    params = {"tokens": SHORT, "max_tokens": 8, **GREEDY}
    calls = [{"jsonrpc": "2.0", "id": number, "method": "infer", "params": params} for number in range(count)]
    sent = time.perf_counter()
    writer.write(b"".join(msgspec.json.encode(call) + b"\n" for call in calls))
    answers = [(await reader.readline(), time.perf_counter() - sent) for _ in range(count)]
    refused_ms.extend(seconds * 1000 for line, seconds in answers if b'"error"' in line)
    writer.close()
    await writer.wait_closed()


async def _capacity_ms(client: AsyncClient) -> float:
    asked = time.perf_counter()
    await client.call("inference/capacity")
    return (time.perf_counter() - asked) * 1000


def _median_and_most(values: list[float]) -> tuple[float, float]:
    return statistics.median(values), max(values)


if __name__ == "__main__":
    main()
