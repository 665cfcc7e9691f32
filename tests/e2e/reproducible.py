"""Reproducible requests in several ways, each by a daemon of its own: alone, parked, beside others, on two replicas."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.targets.card import serving
from car_client import AsyncClient
from car_client.results import Answer

ANSWER = 12
CONTEXT = 2048
OTHERS = 8
Question = dict[str, Any]
# Text, tokens and log-probabilities.
Content = tuple[str, list[int] | None, Any]
Way = Callable[[AsyncClient, list[Question]], Awaitable[list[Content]]]


def questions(count: int, shortest: int, longest: int) -> list[Question]:
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


def run(way: Way, asked: list[Question], model: Path, sequences: int, more: str) -> list[Content]:
    """Return the answers of a daemon of its own."""

    async def connected(socket: Path) -> list[Content]:
        async with AsyncClient(socket) as client:
            return await way(client, asked)

    config = f'[models.tried]\npath = "{model}"\ncontext_tokens = {CONTEXT}\nsequences = {sequences}\n{more}'
    with serving(Path("tried"), config=config) as socket:
        return asyncio.run(connected(socket))


# By name: the way, the sequences of its daemon, and more of its configuration.
WAYS: dict[str, tuple[Way, int, str]] = {
    "parked twice": (parked_twice, 1, ""),
    "beside 8 others": (beside_others, OTHERS + 1, ""),
    "together on two replicas": (together, 2, "replicas = 2\n"),
}


def differing(model: Path, asked: list[Question], more: str) -> Iterator[tuple[str, int]]:
    """Yield each way and how many of its answers differ from those alone; `more` is configuration of the model."""
    expected = run(alone, asked, model, OTHERS, more)
    for name, (way, sequences, own) in WAYS.items():
        answers = run(way, asked, model, sequences, own + more)
        yield name, sum(answer != before for answer, before in zip(answers, expected, strict=True))
