"""Conversations of more users than sequences: the prompt tokens that are computed, the time, and later first tokens.

`python -m benchmarks.conversations [--users N --sequences N --think SECONDS --runs N]`: each user holds four turns of
48-token answers and sends the whole history with each; users share a system prompt. Without `--users`: 12 users on 4, 8
and 12 sequences, and 40 users on 8 sequences with pauses. The model is SmolLM2 (`make real-model`). With the path of
llama.cpp's llama-server in LLAMA_SERVER each case runs on it in turn, with as many slots of a KV part of their own.
"""

import argparse
import asyncio
import json
import statistics
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import Any, NamedTuple

import uvloop

from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from benchmarks.targets.llama_server import LlamaServer, found_llama_servers
from car_client import AsyncClient
from car_client.carctl.bench.completions import COMPLETION
from car_client.carctl.bench.figures import percentile

TURNS, ANSWER_TOKENS, CONTEXT_TOKENS = 4, 48, 1024
SYSTEM = "You are the assistant of a small library. Answer briefly, name a shelf, and be kind to children."
QUESTIONS = (
    "Which book about {topic} should I read first?",
    "Is there one with pictures for a child of {age}?",
    "Where do I find it, and how long may I keep it?",
    "And what would you read next about {topic}?",
)
TOPICS = ("whales", "trains", "bread", "stars", "chess", "rivers", "paper", "clocks", "bees", "maps", "salt", "glass")


class Case(NamedTuple):
    """So many users on so many sequences; each thinks for about `think` seconds before a later turn."""

    users: int
    sequences: int
    think: float = 0.0

    def __str__(self) -> str:
        pause = f", {self.think:g} s between turns" if self.think else ""
        return f"{self.users} users on {self.sequences} sequences{pause}"


class Turn(NamedTuple):
    """One answer: its number in the conversation, the prompt tokens computed for it, its time to the first token."""

    number: int
    computed: int
    first_ms: float


class Run(NamedTuple):
    """The seconds of all conversations of a case on a fresh server, and their turns."""

    seconds: float
    turns: list[Turn]


class Answer(NamedTuple):
    """The text of an answer, the prompt tokens computed for it, its time to the first token."""

    text: str
    computed: int
    first_ms: float


# Returns the answer to a user's conversation.
Chat = Callable[[str, list[dict[str, Any]]], Awaitable[Answer]]
# A daemon or a server for a case, which answers for the length of a block.
Serving = Callable[[Case], AbstractContextManager[Callable[[], AbstractAsyncContextManager[Chat]]]]


COMPUTED, SECONDS, LATE_P95 = "prompt tokens computed", "seconds", "later turns' first token, p95 ms"
CASES = (Case(12, 4), Case(12, 8), Case(12, 12), Case(40, 8, think=2.0))


def main() -> None:
    """Measure the cases in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--think", type=float, default=0.0)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error(f"--runs: {arguments.runs} runs have no median: give 1 or more")
    cases = CASES if arguments.users is None else (Case(arguments.users, arguments.sequences, arguments.think),)
    report = Report("conversations")
    model = str(model_file("smollm2"))
    servers = found_llama_servers(("split",))
    for case in cases:
        for name, runs in measured(model, case, servers, arguments.runs).items():
            for what, values in figures(runs).items():
                report.say(f"{name}: {case}: {what}", statistics.median(values), max(values))
    report.close()


def measured(model: str, case: Case, servers: Sequence[LlamaServer], turns: int) -> dict[str, list[Run]]:
    """Return the runs of card and of each server, in turn, each on a fresh process."""
    starts: dict[str, Serving] = {"card": partial(_card, model)}
    starts |= {server.name: partial(_llama_server, server, model) for server in servers}
    runs: dict[str, list[Run]] = {name: [] for name in starts}
    for _ in range(turns):
        for name, start in starts.items():
            with start(case) as connected:
                runs[name].append(uvloop.run(_conversations(connected, case)))
    return runs


def figures(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return the figures of each run by their names."""
    later = [sorted(turn.first_ms for turn in run.turns if turn.number) for run in runs]
    return {
        COMPUTED: [float(sum(turn.computed for turn in run.turns)) for run in runs],
        SECONDS: [run.seconds for run in runs],
        "later turns' first token, p50 ms": [percentile(times, 50) for times in later],
        LATE_P95: [percentile(times, 95) for times in later],
    }


async def _conversations(connected: Callable[[], AbstractAsyncContextManager[Chat]], case: Case) -> Run:
    async with connected() as chat:
        begin = time.perf_counter()
        turns = await asyncio.gather(*(_conversation(chat, user, case.think) for user in range(case.users)))
        return Run(time.perf_counter() - begin, [turn for each in turns for turn in each])


async def _conversation(chat: Chat, user: int, think: float) -> list[Turn]:
    random = Random(user)
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    turns: list[Turn] = []
    for number in range(TURNS):
        if number and think:
            await asyncio.sleep(random.expovariate(1 / think))
        question = QUESTIONS[number].format(topic=f"{TOPICS[user % len(TOPICS)]} of {1900 + user}", age=4 + user % 8)
        messages.append({"role": "user", "content": question})
        answer = await chat(f"user {user}", messages)
        messages.append({"role": "assistant", "content": answer.text})
        turns.append(Turn(number, answer.computed, answer.first_ms))
    return turns


@contextmanager
def _card(model: str, case: Case) -> Iterator[Callable[[], AbstractAsyncContextManager[Chat]]]:
    """Run a daemon for the length of a block."""

    @asynccontextmanager
    async def connected() -> AsyncIterator[Chat]:
        async with AsyncClient(socket) as client:
            yield partial(_card_answer, client)

    with serving(model, "--capacity", str(case.sequences), "--context-tokens", str(CONTEXT_TOKENS)) as socket:
        yield connected


async def _card_answer(client: AsyncClient, user: str, messages: list[dict[str, Any]]) -> Answer:
    sent, first = time.perf_counter(), None
    stream = client.infer_stream(
        messages=messages,
        max_tokens=ANSWER_TOKENS,
        temperature=0,
        ignore_eos=True,
        client=user,
        session=user,
    )
    async for _ in stream:
        first = first or time.perf_counter()
    assert first is not None
    assert stream.answer is not None
    usage = stream.answer.usage
    return Answer(stream.answer.text, usage.prompt_tokens - usage.cached_tokens, (first - sent) * 1000)


@contextmanager
def _llama_server(
    server: LlamaServer, model: str, case: Case
) -> Iterator[Callable[[], AbstractAsyncContextManager[Chat]]]:
    """Run llama-server for the length of a block."""

    @asynccontextmanager
    async def connected() -> AsyncIterator[Chat]:
        # Each user's request has a thread.
        with ThreadPoolExecutor(case.users) as threads:

            async def answer(_: str, messages: list[dict[str, Any]]) -> Answer:
                return await asyncio.get_running_loop().run_in_executor(threads, _llama_answer, address, messages)

            yield answer

    with server.serving(model, case.sequences, CONTEXT_TOKENS) as completions:
        address = completions.removesuffix(COMPLETION) + "/v1/chat/completions"
        yield connected


def _llama_answer(address: str, messages: list[dict[str, Any]]) -> Answer:
    body = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    sent, first, text, computed = time.perf_counter(), 0.0, "", None
    with urllib.request.urlopen(request) as events:
        for line in events:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            piece = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            first = first or (time.perf_counter() if piece else 0.0)
            text += piece
            computed = event.get("timings", {}).get("prompt_n", computed)
    if computed is None:
        raise RuntimeError("llama-server reported no timings")
    return Answer(text, computed, (first - sent) * 1000)


if __name__ == "__main__":
    main()
