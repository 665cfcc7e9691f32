"""Two answers that stream at once over one connection, and how much the daemon runs at once altogether."""

import asyncio

from car_client import AsyncClient


async def main() -> None:
    async with AsyncClient() as client:
        # The daemon's figure of now: 1 while its model loads; `client.capacity` follows by itself.
        await client.connect()
        print(f"up to {client.capacity} answers at once")
        await asyncio.gather(answer(client, "What is card?"), answer(client, "What is a lease?"))


async def answer(client: AsyncClient, question: str) -> None:
    text, chunks = "", 0
    # Leaving the loop early, or cancelling the task, ends the answer in the daemon too.
    async with client.infer_stream(messages=[{"role": "user", "content": question}], temperature=0) as stream:
        async for chunk in stream:
            text += chunk.text
            chunks += 1
    assert stream.answer
    print(f"{question} {text} ({stream.answer.usage.completion_tokens} tokens, {chunks} chunks)")


asyncio.run(main())
