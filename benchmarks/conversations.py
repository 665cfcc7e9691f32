"""Conversations of more users than sequences: the prompt tokens that are computed, the time, and later first tokens.

`python -m benchmarks.conversations [--users N --sequences N --think SECONDS --runs N]`: each user holds four turns of
48-token answers and sends the whole history with each; users share a system prompt. Without `--users`: 12 users on 4, 8
and 12 sequences, and 40 users on 8 sequences with pauses. The model is SmolLM2 (`make real-model`).
"""

import argparse
import asyncio
import statistics
import time
from random import Random
from typing import Any, NamedTuple

import uvloop

from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from car_client import AsyncClient
from car_client.carctl.load.percentile import percentile

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


CASES = (Case(12, 4), Case(12, 8), Case(12, 12), Case(40, 8, think=2.0))


def main() -> None:
    """Measure the cases in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--think", type=float, default=0.0)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    cases = CASES if arguments.users is None else (Case(arguments.users, arguments.sequences, arguments.think),)
    report = Report("conversations")
    model = str(model_file("smollm2"))
    for case in cases:
        _say(report, case, [_measured(model, case) for _ in range(arguments.runs)])
    report.close()


def _measured(model: str, case: Case) -> tuple[float, list[Turn]]:
    """Return the seconds of all conversations on a fresh daemon, and their turns."""
    with serving(model, "--capacity", str(case.sequences), "--context-tokens", str(CONTEXT_TOKENS)) as socket:
        return uvloop.run(_conversations(str(socket), case))


async def _conversations(socket: str, case: Case) -> tuple[float, list[Turn]]:
    async with AsyncClient(socket) as client:
        begin = time.perf_counter()
        turns = await asyncio.gather(*(_conversation(client, user, case.think) for user in range(case.users)))
        return time.perf_counter() - begin, [turn for each in turns for turn in each]


async def _conversation(client: AsyncClient, user: int, think: float) -> list[Turn]:
    random = Random(user)
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    turns: list[Turn] = []
    for number in range(TURNS):
        if number and think:
            await asyncio.sleep(random.expovariate(1 / think))
        question = QUESTIONS[number].format(topic=f"{TOPICS[user % len(TOPICS)]} of {1900 + user}", age=4 + user % 8)
        messages.append({"role": "user", "content": question})
        text, turn = await _turn(client, user, number, messages)
        messages.append({"role": "assistant", "content": text})
        turns.append(turn)
    return turns


async def _turn(client: AsyncClient, user: int, number: int, messages: list[dict[str, Any]]) -> tuple[str, Turn]:
    sent, first = time.perf_counter(), None
    stream = client.infer_stream(
        messages=messages,
        max_tokens=ANSWER_TOKENS,
        temperature=0,
        ignore_eos=True,
        client=f"user {user}",
        session=f"user {user}",
    )
    async for _ in stream:
        first = first or time.perf_counter()
    assert first is not None
    assert stream.answer is not None
    usage = stream.answer.usage
    return stream.answer.text, Turn(number, usage.prompt_tokens - usage.cached_tokens, (first - sent) * 1000)


def _say(report: Report, case: Case, runs: list[tuple[float, list[Turn]]]) -> None:
    """Print the medians of the runs; in parentheses the greatest."""
    later = [sorted(turn.first_ms for turn in turns if turn.number) for _, turns in runs]
    figures = {
        "prompt tokens computed": [float(sum(turn.computed for turn in turns)) for _, turns in runs],
        "seconds": [seconds for seconds, _ in runs],
        "later turns' first token, p50 ms": [percentile(times, 50) for times in later],
        "later turns' first token, p95 ms": [percentile(times, 95) for times in later],
    }
    for name, values in figures.items():
        report.say(f"{case}: {name}", statistics.median(values), max(values))


if __name__ == "__main__":
    main()
