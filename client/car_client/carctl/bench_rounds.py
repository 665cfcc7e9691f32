"""The measurements of `carctl bench`: streams that run at once on one connection."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from statistics import median

import msgspec

from car_client.async_client import AsyncClient
from car_client.options import InferOptions

# A prompt that no cache holds twice: the number makes each its own.
_PROMPT = "Request {number}: say something long about whatever comes to mind. "


class Plan(msgspec.Struct, frozen=True):
    """What is asked: how many answers one after the other in each lane, and how long they are."""

    answers: int
    prompt_repeat: int
    options: InferOptions


class Round(msgspec.Struct, frozen=True):
    """What one number of requests at once gave: rates in tokens per second, times in milliseconds."""

    at_once: int
    tokens_per_s: float
    each_tokens_per_s: float
    first_token_ms: float
    first_token_slowest_ms: float
    between_tokens_ms: float
    between_tokens_slowest_ms: float


class Timed(msgspec.Struct, frozen=True):
    """One answer: when it was asked for, when its chunks came, and how many tokens it has."""

    asked: float
    came: list[float]
    tokens: int


async def rounds(path: Path | str | None, at_once: Sequence[int], plan: Plan) -> AsyncIterator[Round]:
    """Yield a round for each number of requests at once; without numbers for 1, 2, 4 ... and the capacity."""
    numbers = count(time.time_ns())
    async with AsyncClient(path) as client:
        await client.connect()
        for lanes in at_once or doubling(client.capacity):
            began = time.perf_counter()
            answers = await asyncio.gather(*(_lane(client, plan, numbers) for _ in range(lanes)))
            yield summary(lanes, [each for lane in answers for each in lane], time.perf_counter() - began)


def doubling(capacity: int) -> list[int]:
    """Return 1, 2, 4 and so on below the capacity, and the capacity."""
    return [*(2**power for power in range((capacity - 1).bit_length())), capacity]


def summary(at_once: int, answers: Sequence[Timed], elapsed_s: float) -> Round:
    """Return the figures of a round."""
    first = [each.came[0] - each.asked for each in answers]
    between = [later - earlier for each in answers for earlier, later in pairwise(each.came)] or [0.0]
    return Round(
        at_once,
        sum(each.tokens for each in answers) / elapsed_s,
        median(each.tokens / (each.came[-1] - each.asked) for each in answers),
        median(first) * 1000,
        max(first) * 1000,
        median(between) * 1000,
        max(between) * 1000,
    )


async def _lane(client: AsyncClient, plan: Plan, numbers: "count[int]") -> list[Timed]:
    return [await _answer(client, plan, next(numbers)) for _ in range(plan.answers)]


async def _answer(client: AsyncClient, plan: Plan, number: int) -> Timed:
    prompt = _PROMPT.format(number=number) * plan.prompt_repeat
    stream = client.infer_stream(prompt, **plan.options)
    asked = time.perf_counter()
    came = [time.perf_counter() async for _ in stream]
    assert stream.answer
    # An answer whose text is empty has no chunk.
    return Timed(asked, came or [time.perf_counter()], stream.answer.usage.completion_tokens)
