"""Two answers that stream at once over one connection."""

import asyncio

from car_client import AsyncClient


async def main() -> None:
    async with AsyncClient() as client:
        await client.connect()
        print(f"up to {client.capacity} answers at once")
        await asyncio.gather(answer(client, "What is card?"), answer(client, "What is a lease?"))


async def answer(client: AsyncClient, question: str) -> None:
    # Leaving the block early, or cancelling the task, ends the answer in the daemon too.
    async with client.infer_stream(messages=[{"role": "user", "content": question}], temperature=0) as stream:
        pieces = [chunk.text async for chunk in stream]
    assert stream.answer
    print(f"{question} {stream.answer.text} ({stream.answer.usage.completion_tokens} tokens, {len(pieces)} chunks)")


asyncio.run(main())
