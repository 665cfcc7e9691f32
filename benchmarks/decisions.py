"""Decisions: what ten questions about one state cost, and how long a decision takes where others hold every sequence.

`python -m benchmarks.decisions [--model NAME] [--decisions N]` prints a line a figure and a verdict on each bar; the
model is real (`make real-model`). As root it also runs agents of another user beside the decisions.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import uvloop

from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from car_base.ipc.engine_settings import STEP_TARGET_MS
from car_client import AsyncClient, Decision, Predicate
from car_client.carctl.bench.figures import spread
from tools.real_model import MODELS

WORDS = ("river", "stone", "light", "paper", "window", "garden", "bridge", "letter", "market", "winter", "engine")
TURNS, QUESTIONS, STATE_WORDS = 5, 10, 1900
DECISIONS, IDLE_DECISIONS, DECISION_WORDS = 200, 20, 250
# A program acts on each decision for so long. Without a pause its decisions would be more than half of all tokens, and
# wait for the others' half.
PAUSE_S = 2.0
STREAMS, STREAM_WORDS, STREAM_TOKENS, CONTEXT_TOKENS = 8, 600, 3000, 4096
AGENTS, AGENT_WORDS, AGENT_TOKENS = 4, 1200, 150
OTHER_USER = 61_001
# The bars of a decision: its time by the same tokens as one prompt, and by its time on an idle machine.
COST, WAIT = 1.15, 3.0


class Paid(NamedTuple):
    """A decision about a new state, the same again, and a prompt as long as that state."""

    first: Decision
    again: Decision
    seconds: float
    prompt_tokens: int
    prompt_seconds: float

    @property
    def state_tokens(self) -> int:
        """The tokens that all questions begin with."""
        return self.first.usage.computed_tokens - self.again.usage.computed_tokens

    @property
    def unaccounted(self) -> int:
        """The prompts' tokens that are neither the state, once a question, nor what the second request computed."""
        return self.first.usage.prompt_tokens - QUESTIONS * self.state_tokens - self.again.usage.computed_tokens

    @property
    def ratio(self) -> float:
        """The decision's time, by the time of its tokens at the prompt's rate."""
        tokens_per_s = self.prompt_tokens / self.prompt_seconds
        return self.seconds * tokens_per_s / self.first.usage.computed_tokens


class Beside(NamedTuple):
    """Decisions while streams work: their times in seconds, and the chunks of text that the streams got meanwhile."""

    times: list[float]
    chunks: int
    seconds: float

    def lost_s(self, alone_s: float) -> float:
        """Return the seconds that each decision took from streams that have as many chunks in `alone_s` without it."""
        return (self.seconds - alone_s) / len(self.times)


class Chunks:
    """Counts the chunks of text of all streams."""

    def __init__(self) -> None:
        self.count = 0
        self._awaited = 0
        self._reached = asyncio.Event()

    def add(self) -> None:
        """Count one more."""
        self.count += 1
        if self.count == self._awaited:
            self._reached.set()

    async def reach(self, count: int) -> None:
        """Wait until there are so many."""
        self._awaited = count
        if self.count < count:
            await self._reached.wait()


def main() -> None:
    """Measure the cost, and the waiting beside streams and beside agents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", choices=MODELS)
    parser.add_argument("--decisions", type=int, default=DECISIONS)
    arguments = parser.parse_args()
    model, report, random = model_file(arguments.model), Report("decisions"), Random(46)
    with serving(model, "--capacity", "1", "--context-tokens", str(CONTEXT_TOKENS)) as socket:
        uvloop.run(_cost(socket, random, report))
    options = ("--capacity", str(STREAMS), "--context-tokens", str(CONTEXT_TOKENS))
    with serving(model, *options) as socket:
        idle, found = uvloop.run(_beside_streams(socket, random, arguments.decisions, report))
    with serving(model, *options) as socket:
        alone = uvloop.run(_streams_alone(socket, found.chunks))
    report.verdict("  the streams' time that a decision took, by its own", found.lost_s(alone) / idle, 1.0)
    if os.geteuid() == 0:
        with serving(model, *options, config=f"[daemon]\nallow_uids = [{OTHER_USER}]\n") as socket:
            socket.parent.chmod(0o711)
            uvloop.run(_beside_agents(socket, random, arguments.decisions, report))
    report.close(model=arguments.model)


def text(random: Random, words: int) -> str:
    """Return words that no other text has in this order."""
    return " ".join(random.choices(WORDS, k=words))


async def paid(client: AsyncClient, random: Random, words: int) -> Paid:
    """Return what ten questions about a new state cost; nothing of it is in the cache before."""
    state, salt = text(random, words), random.randbytes(8).hex()
    questions = [Predicate(instructions=f"Is the word number {number} a thing?") for number in range(QUESTIONS)]
    began = time.perf_counter()
    first = await client.decide(state, questions, cache_salt=salt)
    seconds = time.perf_counter() - began
    again = await client.decide(state, questions, cache_salt=salt)
    began = time.perf_counter()
    alone = await client.infer(text(random, words), max_tokens=1)
    return Paid(first, again, seconds, alone.usage.prompt_tokens, time.perf_counter() - began)


async def _cost(socket: Path, random: Random, report: Report) -> None:
    async with AsyncClient(socket) as client:
        found = [await paid(client, random, STATE_WORDS) for _ in range(TURNS)]
    report.say(f"{QUESTIONS} questions: tokens of the state", found[0].state_tokens)
    report.say("  tokens of the tails", found[0].again.usage.computed_tokens)
    report.verdict("  computed besides the state and the tails", max(abs(each.unaccounted) for each in found), 0)
    ratios = [each.ratio for each in found]
    report.say("  time p50 s", statistics.median(each.seconds for each in found))
    report.verdict("  time by the same tokens as one prompt, p50", statistics.median(ratios), COST)


async def _decided(client: AsyncClient, random: Random) -> float:
    """Return the seconds of one decision about a new state."""
    began = time.perf_counter()
    await client.decide(text(random, DECISION_WORDS), [Predicate(instructions="Is it about a bridge?")])
    return time.perf_counter() - began


async def _idle(client: AsyncClient, random: Random, report: Report) -> float:
    """Return the median time of decisions on an idle machine, in seconds."""
    idle = statistics.median([await _decided(client, random) for _ in range(IDLE_DECISIONS)])
    report.say("a decision, idle: p50 s", idle)
    return idle


async def _beside(client: AsyncClient, random: Random, count: int) -> list[float]:
    times = list[float]()
    for _ in range(count):
        times.append(await _decided(client, random))
        await asyncio.sleep(PAUSE_S)  # what a program does with the answer
    return times


async def _asking(
    client: AsyncClient, words: int, tokens: int, random: Random, chunks: Chunks, begun: asyncio.Event
) -> None:
    """Stream answers to prompts of so many words one after the other, until cancelled."""
    while True:
        async for _ in client.infer_stream(text(random, words), max_tokens=tokens, ignore_eos=True, temperature=0):
            chunks.add()
            begun.set()


@asynccontextmanager
async def _running(*works: "partial[Any]") -> AsyncIterator[None]:
    """Run endless work for the length of a block, from when all of it has its first token."""
    events = [asyncio.Event() for _ in works]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(begun=event)) for work, event in zip(works, events, strict=True)]
        for event in events:
            await event.wait()
        yield
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def _streaming(socket: Path) -> AsyncIterator[Chunks]:
    """Run the streams, the same in each daemon, for the length of a block; yield their chunks."""
    chunks = Chunks()
    async with AsyncClient(socket) as client:
        works = [
            partial(_asking, client, STREAM_WORDS, STREAM_TOKENS, Random(number), chunks) for number in range(STREAMS)
        ]
        async with _running(*works):
            yield chunks


async def _beside_streams(socket: Path, random: Random, count: int, report: Report) -> tuple[float, Beside]:
    """Return the time of a decision on an idle machine, and the decisions beside the streams."""
    async with AsyncClient(socket) as client:
        idle = await _idle(client, random, report)
        async with _streaming(socket) as chunks:
            before, began = chunks.count, time.perf_counter()
            times = await _beside(client, random, count)
            found = Beside(times, chunks.count - before, time.perf_counter() - began)
        _waiting(f"beside {STREAMS} streams", times, idle, report)
    return idle, found


async def _streams_alone(socket: Path, count: int) -> float:
    """Return the seconds that the streams take for so many chunks without any decision."""
    async with _streaming(socket) as chunks:
        began = time.perf_counter()
        await chunks.reach(chunks.count + count)
        return time.perf_counter() - began


async def _beside_agents(socket: Path, random: Random, count: int, report: Report) -> None:
    async with AsyncClient(socket) as client, _as_user(OTHER_USER, socket) as other:
        idle = await _idle(client, random, report)
        works = [
            partial(_asking, other, AGENT_WORDS, AGENT_TOKENS, Random(number), Chunks()) for number in range(AGENTS)
        ]
        async with _running(*works):
            times = await _beside(client, random, count)
        _waiting(f"beside {AGENTS} agents of another user", times, idle, report)


def _waiting(what: str, times: list[float], idle: float, report: Report) -> None:
    seen = spread(times)
    report.say(f"{what}: a decision p50 s", seen.p50)
    report.verdict("  p95 s, by three times idle and a step", seen.p95, WAIT * idle + STEP_TARGET_MS / 1000)


@asynccontextmanager
async def _as_user(uid: int, socket: Path) -> AsyncIterator[AsyncClient]:
    """Connect as a user; the kernel notes who a peer is when it connects."""
    async with AsyncExitStack() as stack:
        os.seteuid(uid)
        try:
            client = await stack.enter_async_context(AsyncClient(socket))
            await client.call("inference/capacity")
        finally:
            os.seteuid(0)
        yield client


if __name__ == "__main__":
    main()
