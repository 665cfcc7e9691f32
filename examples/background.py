"""Many prompts that fill what is free and give way to every request that is urgent.

A request of the class `throughput` is parked when one of `latency_critical`, the default, finds no free sequence, and
resumes where it stopped. All prompts are sent at once, up to 64 on a connection: the daemon runs as many as suit the
machine.
"""

import asyncio
import time

from car_client import AsyncClient

QUESTIONS = ["What is card?", "What is a lease?", "What is the gate?", "What is parking?"] * 8


async def main() -> None:
    async with AsyncClient() as client:
        begun = time.monotonic()
        background = [asyncio.create_task(count_tokens(client, question)) for question in QUESTIONS]
        await asyncio.wait(background, return_when=asyncio.FIRST_COMPLETED)
        # This one does not wait for all the others.
        answer = await client.infer(messages=[{"role": "user", "content": "Hi"}], temperature=0, client="chat")
        waiting = sum(not task.done() for task in background)
        print(f"answered in {answer.timings.total_ms:.0f} ms while {waiting} of {len(QUESTIONS)} were not done")
        tokens = sum(await asyncio.gather(*background))
        print(f"{len(QUESTIONS)} answers, {tokens} tokens, {tokens / (time.monotonic() - begun):.0f} tokens/s")


async def count_tokens(client: AsyncClient, question: str) -> int:
    messages = [{"role": "user", "content": question}]
    answer = await client.infer(messages=messages, temperature=0, priority="throughput", client="batch")
    return answer.usage.completion_tokens


asyncio.run(main())
