"""Streaming clients in a closed loop, all in one process; prints one JSON object of figures.

Times in milliseconds: to the first token, and between the tokens after it.
"""

import asyncio
import json
import statistics
import time
from pathlib import Path

import uvloop

from benchmarks.stream import StreamTimes, connect
from benchmarks.workload import Workload, read_arguments


def main() -> None:
    """Warm up with one round, then time the workload."""
    workload, socket = read_arguments()
    print(json.dumps(uvloop.run(_main(workload, socket))))


async def _main(workload: Workload, socket: Path) -> dict[str, float]:
    await _run(Workload(workload.streams, 1, workload.prompt_tokens, workload.answer_tokens), socket)
    started = time.perf_counter()
    streams = await _run(workload, socket)
    seconds = time.perf_counter() - started
    tokens = sum(stream.tokens for stream in streams)
    if tokens != workload.tokens:
        raise RuntimeError(f"{tokens} tokens came where {workload.tokens} were asked for")
    gaps = [gap for stream in streams for gap in stream.gaps_ms]
    return {
        "tokens_per_s": tokens / seconds,
        "ttft_p50_ms": statistics.median(stream.first_ms for stream in streams),
        "itl_p50_ms": statistics.median(gaps),
        "itl_p99_ms": statistics.quantiles(gaps, n=100)[-1],
    }


async def _run(workload: Workload, socket: Path) -> list[StreamTimes]:
    clients = await asyncio.gather(*(_client(workload, stream, socket) for stream in range(workload.streams)))
    return [times for client in clients for times in client]


async def _client(workload: Workload, stream: int, socket: Path) -> list[StreamTimes]:
    connection = await connect(socket)
    times = [
        await connection.stream(
            tokens=workload.prompt(stream, turn),
            max_tokens=workload.answer_tokens,
            temperature=0,
            ignore_eos=True,
        )
        for turn in range(workload.rounds)
    ]
    await connection.close()
    return times


main()
