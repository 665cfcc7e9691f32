"""Apps that keep a daemon busy until they are ended: `python -m tools.pictures.load SOCKET`."""

import asyncio
import sys
from itertools import count

from car_client import AsyncClient
from car_client.options import InferOptions

# Who asks, how often at once, how many words of notes come along, and how.
APPS: list[tuple[str, int, int, InferOptions]] = [
    ("editor", 1, 0, {"max_tokens": 400}),
    ("notes", 1, 700, {"max_tokens": 900}),
    ("mail", 1, 60, {"max_tokens": 2000}),
    ("indexer", 6, 200, {"max_tokens": 1500, "priority": "throughput"}),
]
_QUESTION = "Explain how a request is served."


async def main(socket: str) -> None:
    """Ask without an end."""
    await asyncio.gather(*(_app(socket, *app) for app in APPS))


async def _app(socket: str, name: str, at_once: int, words: int, options: InferOptions) -> None:
    async with AsyncClient(socket, connect_timeout=60) as client:
        await asyncio.gather(*(_ask(client, name, words, options) for _ in range(at_once)))


async def _ask(client: AsyncClient, name: str, words: int, options: InferOptions) -> None:
    for number in count():
        asked: InferOptions = {**options, "ignore_eos": True, "client": name}
        text = f"{number} {'note ' * words}{_QUESTION}"
        await client.infer(messages=[{"role": "user", "content": text}], **asked)


asyncio.run(main(sys.argv[1]))
