"""Reproducible answers: equal alone, beside others, parked, cached, on two replicas and after a restart; their cost.

`python -m benchmarks.reproducible` computes 40 prompts of 10 to 1,500 tokens in each of these ways, greedy and seeded,
with log-probabilities, and compares them byte by byte; it fails where one differs. `--prompts N` computes fewer,
`--prompts 0` measures the cost alone.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psutil

from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from car_client import AsyncClient
from car_client.results import Answer

PROMPTS = 40
SHORTEST, LONGEST = 10, 1500
ANSWER = 24
CONTEXT = 2048
OTHERS = 8
ROUNDS = 3
LONG = 500
Question = dict[str, Any]
# Text, tokens and log-probabilities.
Content = tuple[str, list[int] | None, Any]
Way = Callable[[AsyncClient, list[Question]], Awaitable[list[Content]]]


def questions(count: int, shortest: int = SHORTEST, longest: int = LONGEST) -> list[Question]:
    """Return requests whose prompts share beginnings of any length; every other one is greedy."""
    random = Random(27)
    shared = [random.randrange(100, 40_000) for _ in range(longest)]
    made = []
    for place in range(count):
        length = shortest + (longest - shortest) * place // max(1, count - 1)
        common = random.randrange(length)
        tokens = shared[:common] + [random.randrange(100, 40_000) for _ in range(length - common)]
        made.append(_question(tokens, temperature=place % 2, seed=place))
    random.shuffle(made)
    return made


def _question(tokens: list[int], **more: Any) -> Question:
    options = {"max_tokens": ANSWER, "ignore_eos": True, "return_tokens": True, "logprobs": 3, "reproducible": True}
    return {"tokens": tokens, **options, **more}


def content_of(answer: Answer) -> Content:
    """Return what has to be equal."""
    return answer.text, answer.tokens, [(each.token, each.logprob, each.top) for each in answer.logprobs or []]


async def alone(client: AsyncClient, asked: list[Question]) -> list[Content]:
    """Return the answers of requests one after the other, nothing cached."""
    return [content_of(await client.infer(**each, cache_prompt=False)) for each in asked]


async def cached(client: AsyncClient, asked: list[Question]) -> list[Content]:
    """Return the answers of requests whose prompts are cached, partly those of others."""
    for each in asked:
        await client.infer(**each)
    answers = [await client.infer(**each) for each in asked]
    assert any(answer.usage.cached_tokens for answer in answers), "nothing was cached"
    return [content_of(answer) for answer in answers]


async def beside_others(client: AsyncClient, asked: list[Question]) -> list[Content]:
    """Return the answers of requests beside others that are ordinary and never end."""
    async with busy(client, OTHERS):
        return [content_of(await client.infer(**each)) for each in asked]


async def together(client: AsyncClient, asked: list[Question]) -> list[Content]:
    """Return the answers of requests that all come at once."""
    return [content_of(answer) for answer in await asyncio.gather(*(client.infer(**each) for each in asked))]


async def parked_twice(client: AsyncClient, asked: list[Question]) -> list[Content]:
    """Return the answers of requests that are parked twice for others, by a daemon of one sequence."""
    answers = []
    for each in asked:
        async with client.infer_stream(**each, priority="throughput") as stream:
            chunks = 0
            async for _ in stream:
                chunks += 1
                if chunks <= 2:
                    await _park(client)
            assert stream.answer is not None
            answers.append(content_of(stream.answer))
    return answers


async def _park(client: AsyncClient) -> None:
    """Return once an urgent request ran, for which the running one was parked."""
    async with client.infer_stream("Urgent: " * 20, max_tokens=16, ignore_eos=True) as urgent:
        await anext(aiter(urgent))
        capacity = (await client.status()).capacity
        assert capacity.parked == 1, "the request was not parked"
        async for _ in urgent:
            pass


@asynccontextmanager
async def busy(client: AsyncClient, count: int) -> AsyncIterator[None]:
    """Run requests without an end, half of them with long prompts, for the length of a block."""
    tasks = [asyncio.create_task(_endless(client, place)) for place in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _endless(client: AsyncClient, place: int) -> None:
    prompt = f"{place} " * (20 + 150 * (place % 2))
    while True:
        await client.infer(prompt, max_tokens=40 + place, ignore_eos=True, temperature=1.0)


def run(way: Way, asked: list[Question], model: Path, sequences: int, more: str = "") -> list[Content]:
    """Return the answers of a daemon of its own."""

    async def connected(socket: Path) -> list[Content]:
        async with AsyncClient(socket) as client:
            return await way(client, asked)

    config = f'[models.tried]\npath = "{model}"\ncontext_tokens = {CONTEXT}\nsequences = {sequences}\n{more}'
    with serving(Path("tried"), config=config) as socket:
        return asyncio.run(connected(socket))


# By name: the way, the sequences of its daemon, and more of its configuration.
WAYS: dict[str, tuple[Way, int, str]] = {
    "after a restart, with other sequences": (alone, 2, ""),
    "cached": (cached, 3, ""),
    "parked twice": (parked_twice, 1, ""),
    "beside 8 others": (beside_others, OTHERS + 1, ""),
    "together on two replicas": (together, 2, "replicas = 2\n"),
}


def differing(
    model: Path, asked: list[Question], ways: Iterable[str] = WAYS, more: str = ""
) -> Iterator[tuple[str, int]]:
    """Yield how many answers differ from those alone, with the way; `more` is configuration of the model."""
    expected = run(alone, asked, model, OTHERS, more)
    for name in ways:
        way, sequences, own = WAYS[name]
        answers = run(way, asked, model, sequences, own + more)
        yield name, sum(answer != before for answer, before in zip(answers, expected, strict=True))


async def costs(client: AsyncClient, report: Report) -> None:
    """Report the times of reproducible and of ordinary requests, in turn: prompts, lone answers, four at once.

    The engine's processor time is reported too, because other programs on the cores change the wall's clock.
    """
    prompt = questions(2, LONG, LONG)[0]["tokens"]
    engine = psutil.Process((await client.status()).models[0].engines[0].pid)
    for name, tokens, answer, count in (
        (f"a prompt of {LONG} tokens", prompt, 1, 1),
        ("an answer of 50 tokens after 30", prompt[:30], 50, 1),
        ("four answers of 50 tokens at once, after 30", prompt[:30], 50, 4),
    ):
        options: Question = {"max_tokens": answer, "ignore_eos": True, "cache_prompt": False, "temperature": 0}
        took: dict[bool, list[Took]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for reproducible, all_of_them in took.items():
                started = Took(time.perf_counter(), _processor(engine))
                asked = [client.infer(tokens=tokens, reproducible=reproducible, **options) for _ in range(count)]
                await asyncio.gather(*asked)
                wall, processor = time.perf_counter() - started.wall, _processor(engine) - started.processor
                all_of_them.append(Took(wall, processor))
        for clock in Took._fields:
            ordinary, exact = (statistics.median(getattr(each, clock) for each in took[kind]) for kind in (False, True))
            report.say(f"{name}: {clock} ms, ordinary and reproducible", 1000 * ordinary, 1000 * exact)
            report.say(f"{name}: {clock} time, times an ordinary one", exact / ordinary)


class Took(NamedTuple):
    """Seconds of a request, by the wall's clock and of the engine's processor time."""

    wall: float
    processor: float


def _processor(engine: psutil.Process) -> float:
    times = engine.cpu_times()
    return times.user + times.system


def main() -> None:
    """Compare all ways, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--way", choices=WAYS, action="append", help="this way alone (repeatable)")
    parser.add_argument("--threads", type=int, help="of each engine; the physical cores where absent")
    parser.add_argument("--no-costs", action="store_true")
    options = parser.parse_args()
    report = Report("reproducible")
    model = model_file("q8_0")
    more = f"threads = {options.threads}\n" if options.threads else ""
    if options.prompts:
        for name, different in differing(model, questions(options.prompts), options.way or WAYS, more):
            report.say(f"answers of {options.prompts} that differ {name}", different)
            assert not different
    if not options.no_costs:

        async def measured(client: AsyncClient, _: list[Question]) -> list[Content]:
            await costs(client, report)
            return []

        run(measured, [], model, 4, more)
    report.close()


if __name__ == "__main__":
    main()
