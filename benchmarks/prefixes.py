"""Savings of a shared prefix: on the same sequence, on a busy one, after a restart, and for many clients at once.

`python -m benchmarks.prefixes` prints one line a figure; the model has random weights and 135M dimensions.
"""

import asyncio
import statistics
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks.generator import stream
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from benchmarks.targets.llama_server import found_llama_servers
from car_client import AsyncClient

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
LENGTHS = (1000, 1500)
RESTARTED_LENGTHS = (1000, 2000)
SEQUENCES, CONTEXT_TOKENS = 16, 2048
# A round leaves prefixes in three sequences: after these there is one without.
ROUNDS = 5
CROWDED_ROUNDS = 4


class Restarted(NamedTuple):
    """Times to the first token in ms, of prompts that are new and of as many that begin like one before the restart."""

    cold_ms: list[float]
    again_ms: list[float]

    @property
    def cold(self) -> float:
        """The median of new prompts."""
        return statistics.median(self.cold_ms)

    @property
    def percents(self) -> list[float]:
        """Each second request's time, in percent of the median of new prompts."""
        return [100 * each / self.cold for each in self.again_ms]

    @property
    def percent(self) -> float:
        """The median of these."""
        return statistics.median(self.percents)


def main() -> None:
    """Measure everything on one model."""
    report = Report("prefixes")
    model = str(model_file("q8_0"))
    for length in LENGTHS:
        with _card(model) as socket:
            uvloop.run(_second_request("card", str(socket), length, report))
    with _card(model) as socket:
        uvloop.run(_many(socket, 20, report))
    for length in RESTARTED_LENGTHS:
        found = after_restart(model, length, ROUNDS)
        report.say(f"card: prefix of {length}, the daemon restarted: first token, cold, p50 ms", found.cold)
        report.say(f"card: {length} after a restart, percent of cold", found.percent, max(found.percents))
    for server in found_llama_servers(("split", "unified")):
        for length in LENGTHS:
            with server.serving(model, SEQUENCES, CONTEXT_TOKENS) as address:
                uvloop.run(_second_request(server.name, address, length, report))
    report.close()


def _card(model: str, config: str = "") -> AbstractContextManager[Path]:
    return serving(model, "--capacity", str(SEQUENCES), "--context-tokens", str(CONTEXT_TOKENS), config=config)


def prefix(length: int, number: int) -> list[int]:
    """Return a prefix that no other number has."""
    return [300 + (number * 131 + place * 7) % 40_000 for place in range(length)]


async def _second_request(name: str, address: str, length: int, report: Report) -> None:
    """A second request that repeats one that is done, or shares a prefix with it or with one that still runs."""
    cold, again, warm, busy = [], [], [], []
    for turn in range(ROUNDS):
        shared = prefix(length, length + turn)
        cold.append((await stream(address, [*shared, 301, 302], 2, GREEDY)).first_ms)
        again.append((await stream(address, [*shared, 301, 302], 2, GREEDY)).first_ms)
        warm.append((await stream(address, [*shared, 303, 304], 2, GREEDY)).first_ms)
        busy.append(await _beside_its_first(address, prefix(length, 10_000 + length + turn)))
    crowded = [await _beside_its_first(address, prefix(length, 20_000 + turn)) for turn in range(CROWDED_ROUNDS)]
    base = statistics.median(cold)
    report.say(f"{name}: prefix of {length}: first token, cold, p50 ms", base)
    cases = {
        "the same prompt again": again,
        "on its own sequence": warm,
        "while its sequence is busy": busy,
        "while it is busy, and another prefix has to leave": crowded,
    }
    for what, times in cases.items():
        percent = 100 * statistics.median(times) / base, 100 * max(times) / base
        report.say(f"{name}: {length} {what}, percent of cold", *percent)


def after_restart(model: str, length: int, turns: int) -> Restarted:
    """Let a second request to another daemon find the prefix in a file; nothing was computed there before."""
    found = Restarted([], [])
    with tempfile.TemporaryDirectory(prefix="card-") as folder:
        config = f'[scheduler]\ncache_dir = "{folder}"\n'
        for turn in range(turns):
            shared = prefix(length, 30_000 + length + turn)
            for times, last in ((found.cold_ms, 302), (found.again_ms, 304)):
                with _card(model, config) as socket:
                    times.append(uvloop.run(stream(str(socket), [*shared, 301, last], 2, GREEDY)).first_ms)
    return found


async def _beside_its_first(address: str, shared: list[int]) -> float:
    """Return when a request had its first token that shares a prefix with one which still runs, in milliseconds."""
    started = asyncio.Event()
    running = asyncio.create_task(stream(address, [*shared, 301], 200, GREEDY, started))
    await started.wait()
    second = await stream(address, [*shared, 305, 306], 2, GREEDY)
    await running
    return second.first_ms


async def _many(socket: Path, count: int, report: Report) -> None:
    """Clients with one system prompt of 500 tokens and questions of their own, all at once."""
    system = prefix(500, 77)
    async with AsyncClient(socket) as client:
        answers = await asyncio.gather(
            *(
                client.infer(
                    tokens=[*system, 400 + number, 500],
                    max_tokens=4,
                    temperature=0,
                    ignore_eos=True,
                    client=str(number),
                )
                for number in range(count)
            )
        )
    computed = sum(answer.usage.prompt_tokens - answer.usage.cached_tokens for answer in answers)
    report.say(f"{count} clients with a system prompt of 500 tokens: prompt tokens computed in all", computed)


if __name__ == "__main__":
    main()
