"""Streams that a benchmark starts one by one."""

import asyncio
from typing import Any

from car_client.carctl.load.connection import Connection
from car_client.carctl.load.endpoint import Endpoint
from car_client.carctl.load.request import Request
from car_client.carctl.load.timed_answer import TimedAnswer

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
SHORT = [400] * 16


async def stream(
    address: str, prompt: list[int], max_tokens: int, options: dict[str, Any], started: asyncio.Event | None = None
) -> TimedAnswer:
    """Return one answer, on a connection of its own."""
    connection: Connection = await Endpoint(address).connect(options)
    try:
        return await connection.stream(Request(1, prompt, max_tokens), started)
    finally:
        connection.close()


async def decoders(
    address: str, count: int, max_tokens: int, options: dict[str, Any]
) -> "asyncio.Future[list[TimedAnswer]]":
    """Start streams with short prompts and return once all of them decode."""
    started = [asyncio.Event() for _ in range(count)]
    running = asyncio.gather(*(stream(address, SHORT, max_tokens, options, event) for event in started))
    for event in started:
        await event.wait()
    return running
