"""Prompt lookup on and off: texts that repeat their prompts, and texts that do not.

`python -m benchmarks.guesses [--turns 5] [--model smollm2] [--streams 1]` prints one table: tokens a second, in turn in
one run, and the speed-up that the same answers would have on a machine whose rows cost next to nothing; then a verdict
a line. One stream takes some minutes.
"""

import argparse
import asyncio
import statistics
import time
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.table import figure, markdown
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
TOKENS = 128
# What the ratios of on to off have to reach, at least: of free texts, of repeating ones, and of these in simulation.
FREE_LEAST, REPEATING_LEAST, SIMULATED_LEAST = 0.98, 1.15, 2.0
HEADINGS = ("text", "off, tokens/s", "on, tokens/s", "on / off", "simulated")
# Seconds by rows of a machine that waits for its memory.
MEMORY_BOUND = {1: 1.0, 8: 1.1, 64: 1.9}


class Measured(NamedTuple):
    """One text: its median rates, the median ratio of neighbouring turns, and the simulated speed-up."""

    text: str
    off: float
    on: float
    ratio: float
    simulated: float


def main() -> None:
    """Measure both kinds of text."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--model", default="smollm2")
    arguments = parser.parse_args()
    report = Report("guesses")
    model = model_file(arguments.model)
    config = "".join(
        f'[models.{name}]\npath = "{model}"\nspeculative = {str(name == "on").lower()}\n'
        f"sequences = {arguments.streams}\ncontext_tokens = 2048\npinned = true\n"
        for name in ("off", "on")
    )
    with serving(Path("off"), config=config) as socket:
        repeating, free = uvloop.run(_measured(str(socket), arguments.streams, arguments.turns))
    rows = [[each.text, *map(figure, each[1:])] for each in (*repeating, *free)]
    print(markdown(HEADINGS, rows))
    _judge(report, "texts without repetition, on / off, least and median", [each.ratio for each in free], FREE_LEAST)
    _judge(report, "copies, edits, summaries: on / off", [each.ratio for each in repeating], REPEATING_LEAST)
    simulated = [each.simulated for each in repeating]
    _judge(report, "the same at rows that cost next to nothing", simulated, SIMULATED_LEAST)
    report.close(texts=[each._asdict() for each in (*repeating, *free)])


def _judge(report: Report, what: str, ratios: list[float], wanted: float) -> None:
    """Print the least ratio and the median, and whether the least reaches what is wanted."""
    least = min(ratios)
    report.say(f"{what}: {'reaches' if least >= wanted else 'is below'} {wanted:g}", least, statistics.median(ratios))


async def _measured(address: str, streams: int, turns: int) -> tuple[list[Measured], list[Measured]]:
    """Return the repeating texts and the free ones, each run with and without guesses in turn."""
    async with AsyncClient(address) as client:
        kinds = ([await _text(client, *text, streams, turns) for text in kind.items()] for kind in (REPEATING, FREE))
        repeating, free = [kind async for kind in kinds]
        return repeating, free


async def _text(client: AsyncClient, name: str, text: str, streams: int, turns: int) -> Measured:
    """Return the figures of one text; the first turn only warms up."""
    rates: dict[str, list[float]] = {"off": [], "on": []}
    for turn in range(turns + 1):
        for model in ("off", "on") if turn % 2 else ("on", "off"):
            rates[model].append(await _rate(client, model, text, streams))
    off, on = rates["off"][1:], rates["on"][1:]
    ratio = statistics.median(with_it / without for with_it, without in zip(on, off, strict=True))
    return Measured(name, statistics.median(off), statistics.median(on), ratio, await _simulated(client, text))


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
    guesser, seconds, place = Guesser(costs, 64, inf), 0.0, 1
    while place < len(answer):
        batch = DecodeBatch([sequence], [])
        guesser.plan(batch, 1 << 20, [batch])
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
