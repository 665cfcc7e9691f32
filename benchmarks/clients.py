"""Streaming clients in a closed loop, all in one process; prints one JSON object of figures.

Times in milliseconds: to the first token, and between the tokens after it.
"""

import asyncio
import json
import statistics
import time
from pathlib import Path

import msgspec
import uvloop

from benchmarks.workload import Workload, read_arguments

LINE_BYTES = 1 << 20


class Figures:
    """What the clients measured."""

    def __init__(self) -> None:
        self.tokens = 0
        self.first: list[float] = []
        self.between: list[float] = []


def main() -> None:
    """Warm up with one round, then time the workload."""
    workload, socket = read_arguments()
    uvloop.run(_main(workload, socket))


async def _main(workload: Workload, socket: Path) -> None:
    await _run(Workload(workload.streams, 1, workload.prompt_tokens, workload.answer_tokens), socket, Figures())
    figures = Figures()
    started = time.perf_counter()
    await _run(workload, socket, figures)
    seconds = time.perf_counter() - started
    if figures.tokens != workload.tokens:
        raise RuntimeError(f"{figures.tokens} tokens came where {workload.tokens} were asked for")
    print(
        json.dumps(
            {
                "tokens_per_s": figures.tokens / seconds,
                "ttft_p50_ms": statistics.median(figures.first),
                "itl_p50_ms": statistics.median(figures.between),
                "itl_p99_ms": statistics.quantiles(figures.between, n=100)[-1],
            }
        )
    )


async def _run(workload: Workload, socket: Path, figures: Figures) -> None:
    await asyncio.gather(*(_client(workload, stream, socket, figures) for stream in range(workload.streams)))


async def _client(workload: Workload, stream: int, socket: Path, figures: Figures) -> None:
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=LINE_BYTES)
    for turn in range(workload.rounds):
        await _ask(reader, writer, workload.prompt(stream, turn), workload.answer_tokens, figures)
    writer.close()
    await writer.wait_closed()


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, prompt: list[int], answer: int, figures: Figures
) -> None:
    params = {"tokens": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True}
    request = {"jsonrpc": "2.0", "id": 1, "method": "infer_stream", "params": params}
    last = time.perf_counter()
    writer.write(msgspec.json.encode(request) + b"\n")
    chunks = 0
    while True:
        line = await reader.readline()
        now = time.perf_counter()
        if b'"result"' in line:
            figures.tokens += msgspec.json.decode(line)["result"]["usage"]["completion_tokens"]
            return
        if b'"infer_stream/chunk"' not in line:
            raise RuntimeError(line.decode())
        (figures.between if chunks else figures.first).append((now - last) * 1000)
        chunks += 1
        last = now


main()
