"""Conversations of more users than sequences: the prompt tokens that are computed, the time, and later first tokens.

`python -m benchmarks.conversations [--users N --sequences N --think SECONDS --runs N]`: each user holds four turns of
48-token answers and sends the whole history with each; users share a system prompt. Without `--users`: 12 users on 4, 8
and 12 sequences, and 40 users on 8 sequences with pauses. The model is SmolLM2 (`make real-model`). With the path of
llama.cpp's llama-server in LLAMA_SERVER each case runs on it in turn, with as many slots of a KV part of their own.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from random import Random
from typing import Any, NamedTuple

import uvloop

from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from benchmarks.targets.llama_server import LlamaServer, found_llama_servers
from car_client.carctl.bench.completions import COMPLETION
from car_client.carctl.bench.figures import percentile
from car_client.carctl.bench.generator import connect

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
    starts: dict[str, Callable[[Case], AbstractContextManager[str]]] = {"card": partial(_card, model)}
    starts |= {server.name: partial(_llama_server, server, model) for server in servers}
    runs: dict[str, list[Run]] = {name: [] for name in starts}
    for _ in range(turns):
        for name, start in starts.items():
            with start(case) as address:
                runs[name].append(uvloop.run(_conversations(address, case)))
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


async def _conversations(address: str, case: Case) -> Run:
    begin = time.perf_counter()
    turns = await asyncio.gather(*(_conversation(address, user, case.think) for user in range(case.users)))
    return Run(time.perf_counter() - begin, [turn for each in turns for turn in each])


async def _conversation(address: str, user: int, think: float) -> list[Turn]:
    random, name = Random(user), f"user {user}"
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    turns: list[Turn] = []
    target = await connect(address, {"temperature": 0, "ignore_eos": True, "client": name, "session": name})
    try:
        for number in range(TURNS):
            if number and think:
                await asyncio.sleep(random.expovariate(1 / think))
            question = QUESTIONS[number].format(
                topic=f"{TOPICS[user % len(TOPICS)]} of {1900 + user}", age=4 + user % 8
            )
            messages.append({"role": "user", "content": question})
            answer = await target.stream({"messages": messages, "max_tokens": ANSWER_TOKENS})
            if answer.prompt_tokens is None or answer.cached_tokens is None:
                raise RuntimeError(f"{address} does not count cached tokens")
            messages.append({"role": "assistant", "content": answer.text})
            turns.append(Turn(number, answer.prompt_tokens - answer.cached_tokens, answer.first_ms))
    finally:
        await target.aclose()
    return turns


@contextmanager
def _card(model: str, case: Case) -> Iterator[str]:
    with serving(model, "--capacity", str(case.sequences), "--context-tokens", str(CONTEXT_TOKENS)) as socket:
        yield str(socket)


@contextmanager
def _llama_server(server: LlamaServer, model: str, case: Case) -> Iterator[str]:
    with server.serving(model, case.sequences, CONTEXT_TOKENS) as completions:
        yield completions.removesuffix(COMPLETION)


if __name__ == "__main__":
    main()
