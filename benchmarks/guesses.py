"""Prompt lookup on and off: texts that repeat their prompts, and texts that do not.

`python -m benchmarks.guesses [--turns 5] [--model smollm2]` prints tokens a second in turn in one run, for one stream
and for four, and the speed-up that the same answers would have on a machine whose rows cost next to nothing.
"""

import argparse
import asyncio
import statistics
import time
from itertools import takewhile
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from car_client import AsyncClient
from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.guesses.guesser import Guesser
from car_daemon.engine.batching.guesses.prompt_lookup import PromptLookup
from car_daemon.engine.batching.packing import DecodeBatch
from car_daemon.engine.batching.sequence import Sequence

_TEXT = (
    "The harbour town of Velmora lies between two hills. Its market opens every Tuesday at seven, when the boats bring "
    "herring, salt and rope. In 1871 a storm broke the old pier, and the council built a new one from grey granite. "
    "Since then the lighthouse keeper writes the height of the tide into a book each morning, and reads it aloud."
)
_CODE = """def total(orders):
    result = 0
    for order in orders:
        if order.paid:
            result += order.price * order.count
    return result


def unpaid(orders):
    return [order for order in orders if not order.paid]
"""
REPEATING = {
    "copy": f"Repeat this text word for word:\n\n{_TEXT}",
    "copy of code": f"Repeat this code exactly, in one block:\n\n{_CODE}",
    "edit": f"Write this text again, but replace Velmora by Astrun:\n\n{_TEXT}",
    "edit of code": f"Write this code again with `price` renamed to `cost`:\n\n{_CODE}",
    "summary": f"Summarize this text in its own words, sentence by sentence:\n\n{_TEXT}",
}
FREE = {
    "story": "Write a short story about a clockmaker.",
    "letter": "Write a letter to a friend about a journey through mountains.",
    "chat": "What should I think about before I adopt a dog?",
    "advice": "How do I learn to play the piano as an adult?",
    "science": "Explain why the sky is blue.",
    "history": "Tell me about the invention of the printing press.",
    "cooking": "Describe how to cook a vegetable soup.",
    "code": "Write a Python function that finds prime numbers.",
    "poem": "Write a poem about the sea in winter.",
    "opinion": "Is it better to live in a city or in the country?",
}
TOKENS = 160
STREAMS = (1, 4)
# Seconds by rows of a machine that waits for its memory.
MEMORY_BOUND = {1: 1.0, 8: 1.1, 64: 1.9}


def main() -> None:
    """Measure both kinds of text."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--model", default="smollm2")
    arguments = parser.parse_args()
    report = Report("guesses")
    model = model_file(arguments.model)
    for streams in STREAMS:
        config = "".join(
            f'[models.{name}]\npath = "{model}"\nsequences = {streams}\nspeculative = {str(name == "on").lower()}\n'
            f"context_tokens = 2048\npinned = true\n"
            for name in ("off", "on")
        )
        with serving(Path("off"), config=config) as socket:
            uvloop.run(_measure(str(socket), streams, arguments.turns, report))
    report.close()


async def _measure(address: str, streams: int, turns: int, report: Report) -> None:
    """Run each text with and without guesses in turn."""
    async with AsyncClient(address) as client:
        for kind, texts in (("repeats", REPEATING), ("free", FREE)):
            ratios = []
            for name, text in texts.items():
                rates: dict[str, list[float]] = {"off": [], "on": []}
                for turn in range(turns + 1):
                    for model in ("off", "on") if turn % 2 else ("on", "off"):
                        rate = await _rate(client, model, text, streams)
                        if turn:
                            rates[model].append(rate)
                ratios.append(statistics.median(rates["on"]) / statistics.median(rates["off"]))
                line = f"{streams} streams, {kind}, {name}: tokens/s on / off"
                report.say(line, ratios[-1], *map(statistics.median, (rates["off"], rates["on"])))
                if streams == 1:
                    report.say("  at rows that cost next to nothing", await _simulated(client, text))
            report.say(f"{streams} streams, {kind}: median and least", statistics.median(ratios), min(ratios))


async def _rate(client: AsyncClient, model: str, text: str, streams: int) -> float:
    started = time.perf_counter()
    answers = await asyncio.gather(*(client.call("infer", _request(model, text)) for _ in range(streams)))
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    return float(tokens / (time.perf_counter() - started))


async def _simulated(client: AsyncClient, text: str) -> float:
    """Return the tokens per unit of time that the same answer has where rows cost next to nothing."""
    request = _request("off", text)
    prompt = (await client.call("tokenize", {key: request[key] for key in ("model", "messages")}))["tokens"]
    answer = (await client.call("infer", {**request, "return_tokens": True}))["tokens"]
    sequence = Sequence(0)
    sequence.start(prompt, 1)
    sequence.commit(len(prompt))
    sequence.lookup = lookup = PromptLookup([*prompt, answer[0]])
    costs = StepCosts(MEMORY_BOUND)
    guesser, seconds, place = Guesser(costs, 64), 0.0, 1
    while place < len(answer):
        batch = DecodeBatch([sequence], [])
        guesser.plan(batch, 1 << 20)
        seconds += costs.decode.estimate(batch.rows)
        said = zip(sequence.guess, answer[place:], strict=False)
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], said))
        for token in answer[place : place + right + 1]:
            lookup.add(token)
        if sequence.guess:
            lookup.learn(len(sequence.guess), right)
            sequence.guess = []
        place += right + 1
    return (len(answer) - 1) / seconds


def _request(model: str, text: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "cache_prompt": True,
    }


if __name__ == "__main__":
    main()
