"""Many prompts that are in no hurry: they fill what is free, and give way to everybody who waits for an answer.

Work of the class `throughput` is set aside when a `latency_critical` request (the default) finds no free sequence, and
goes on later where it stopped. Nothing here decides how much runs at once: all is asked at once (a connection may have
64 requests in flight), and the daemon runs as many as the machine does well.
"""

import asyncio
import time

from car_client import AsyncClient

QUESTIONS = ["What is card?", "What is a lease?", "What is the gate?", "What is parking?"] * 8


async def main() -> None:
    async with AsyncClient() as client:
        begun = time.monotonic()
        background = [asyncio.create_task(batch_answer(client, question)) for question in QUESTIONS]
        await asyncio.wait(background, return_when=asyncio.FIRST_COMPLETED)
        # Somebody asks meanwhile, and is not made to wait for all the others.
        answer = await client.infer(messages=[{"role": "user", "content": "Hi"}], temperature=0, client="chat")
        waiting = sum(not task.done() for task in background)
        print(f"answered in {answer.timings.total_ms:.0f} ms while {waiting} of {len(QUESTIONS)} were not done")
        tokens = sum(await asyncio.gather(*background))
        print(f"{len(QUESTIONS)} answers, {tokens} tokens, {tokens / (time.monotonic() - begun):.0f} tokens/s")


async def batch_answer(client: AsyncClient, question: str) -> int:
    """Return how many tokens the answer has."""
    answer = await client.infer(
        messages=[{"role": "user", "content": question}], temperature=0, priority="throughput", client="batch"
    )
    return answer.usage.completion_tokens


asyncio.run(main())
