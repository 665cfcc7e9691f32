"""Embeddings: texts a second, and what they cost those who stream meanwhile.

`python -m benchmarks.texts [--peer URL]` prints one line a figure. `--peer` embeds the same texts with a server that
speaks OpenAI's protocol, such as the binding's own (`python -m llama_cpp.server --embedding true`), in turn.
"""

import argparse
import asyncio
import json
import statistics
import time
import urllib.request
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.daemon import random_model, serving
from benchmarks.report import say
from benchmarks.stream import connect
from car_daemon import guide

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
WORDS = ("daemon", "serves", "every", "local", "app", "from", "one", "place", "and", "says", "how", "much", "runs")
TEXTS = 10_000
BATCH = 100


def main() -> None:
    """Measure throughput on the built-in model, and the cost to streams on a larger one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", help="address of a server with /v1/embeddings that serves the guide model")
    peer = parser.parse_args().peer
    with serving(guide.PATH, "--capacity", "4") as socket:
        say("10,000 short texts, the guide model: texts/s", uvloop.run(_embedded(socket)))
        if peer:
            say("  by the other server: texts/s", _embedded_by(peer))
            say("  here again: texts/s", uvloop.run(_embedded(socket)))
    with serving(random_model("q8_0"), "--capacity", "9", "--context-tokens", "1024") as socket:
        uvloop.run(_beside_streams(socket))


def batches() -> list[list[str]]:
    """Return texts of six to eleven words."""
    texts = [
        " ".join(WORDS[(number * 7 + place * 3) % len(WORDS)] for place in range(6 + number % 6))
        for number in range(TEXTS)
    ]
    return [texts[start : start + BATCH] for start in range(0, TEXTS, BATCH)]


async def _embedded(socket: Path) -> float:
    client = await connect(socket)
    started = time.perf_counter()
    for batch in batches():
        answer = await client.call("embed", {"input": batch})
        assert len(answer["result"]["embeddings"]) == len(batch)
    await client.close()
    return TEXTS / (time.perf_counter() - started)


def _embedded_by(peer: str) -> float:
    started = time.perf_counter()
    for batch in batches():
        data = json.dumps({"input": batch, "model": "any"}).encode()
        request = urllib.request.Request(f"{peer}/v1/embeddings", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            assert len(json.load(answer)["data"]) == len(batch)
    return TEXTS / (time.perf_counter() - started)


async def _beside_streams(socket: Path) -> None:
    alone = await _streams(socket, embed=False)
    beside = await _streams(socket, embed=True)
    say("8 streams of a 135M model alone: between tokens p50 ms", statistics.median(alone))
    say("  while texts are embedded, p50 ms", statistics.median(beside), max(beside))
    say("  ratio", statistics.median(beside) / statistics.median(alone))


async def _streams(socket: Path, *, embed: bool) -> list[float]:
    streams = [await connect(socket) for _ in range(8)]
    tasks = [
        asyncio.create_task(stream.stream(tokens=[400 + n] * 16, max_tokens=150, **GREEDY))
        for n, stream in enumerate(streams)
    ]
    texts = await connect(socket)
    answered = 0
    while embed and not all(task.done() for task in tasks):
        answered += len((await texts.call("embed", {"input": ["a few short words"] * 8}))["result"]["embeddings"])
    if embed:
        say("texts embedded beside 8 streams", answered)
    times = await asyncio.gather(*tasks)
    for connection in (*streams, texts):
        await connection.close()
    return [gap for one in times for gap in one.gaps_ms]


if __name__ == "__main__":
    main()
