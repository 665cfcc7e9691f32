"""Prompt lookup on and off: texts that repeat their prompts, and texts that do not.

`python -m benchmarks.guesses [--turns 5] [--model smollm2] [--streams 1]` prints one table: tokens a second, in turn in
one run, and the speed-up that the same answers would have on a machine whose rows cost next to nothing; then a verdict
a line. One stream takes some minutes.
"""

import argparse
import asyncio
import json
import statistics
import time
import urllib.request
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.table import figure, markdown
from benchmarks.targets.card import serving
from benchmarks.targets.llama_server import LlamaServer, found_llama_servers
from car_client import AsyncClient
from car_client.carctl.load.http.dialect import COMPLETION
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
TOKENS, CONTEXT_TOKENS = 128, 2048
# The names of llama-server's lookups: this one has no state beside the text.
SERVER_LOOKUP = "ngram-simple"
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
    repeating, free = measured(str(model_file(arguments.model)), arguments.streams, arguments.turns)
    rows = [[each.text, *map(figure, each[1:])] for each in (*repeating, *free)]
    print(markdown(HEADINGS, rows))
    _judge(report, "texts without repetition, on / off, least and median", [each.ratio for each in free], FREE_LEAST)
    _judge(report, "copies, edits, summaries: on / off", [each.ratio for each in repeating], REPEATING_LEAST)
    simulated = [each.simulated for each in repeating]
    _judge(report, "the same at rows that cost next to nothing", simulated, SIMULATED_LEAST)
    for server in found_llama_servers(("split",)):
        ratios = measured_server(str(model_file(arguments.model)), server, arguments.turns)
        report.say(
            f"{server.name}: the same with its own lookup, least and median", min(ratios), statistics.median(ratios)
        )
    report.close(texts=[each._asdict() for each in (*repeating, *free)])


def _judge(report: Report, what: str, ratios: list[float], wanted: float) -> None:
    """Print the least ratio and the median, and whether the least reaches what is wanted."""
    least = min(ratios)
    report.say(f"{what}: {'reaches' if least >= wanted else 'is below'} {wanted:g}", least, statistics.median(ratios))


def measured(model: str, streams: int, turns: int) -> tuple[list[Measured], list[Measured]]:
    """Return the figures of the repeating texts and of the free ones."""
    config = "".join(
        f'[models.{name}]\npath = "{model}"\nspeculative = {str(name == "on").lower()}\n'
        f"sequences = {streams}\ncontext_tokens = {CONTEXT_TOKENS}\npinned = true\n"
        for name in ("off", "on")
    )
    with serving(Path("off"), config=config) as socket:
        return uvloop.run(_measured(str(socket), streams, turns))


def measured_server(model: str, server: LlamaServer, turns: int) -> list[float]:
    """Return, for each repeating text, the median ratio of llama-server with its own lookup to without, in turn."""
    size = (model, 1, CONTEXT_TOKENS)
    with server.serving(*size) as off, server.serving(*size, "--spec-type", SERVER_LOOKUP) as on:
        return [_server_ratio(off, on, text, turns) for text in REPEATING.values()]


def _server_ratio(off: str, on: str, text: str, turns: int) -> float:
    """Return the ratio for one text; the first turn only warms up."""
    ratios = [_server_rate(on, text) / _server_rate(off, text) for _ in range(turns + 1)]
    return statistics.median(ratios[1:])


def _server_rate(completions: str, text: str) -> float:
    request = {name: value for name, value in _request("any", text).items() if name != "cache_prompt"}
    url = completions.removesuffix(COMPLETION) + "/v1/chat/completions"
    started = time.perf_counter()
    data = json.dumps(request).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as answer:
        tokens = json.load(answer)["usage"]["completion_tokens"]
    return float(tokens / (time.perf_counter() - started))


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
            rates[model].append(await rate(client, model, text, streams))
    off, on = rates["off"][1:], rates["on"][1:]
    ratio = statistics.median(with_it / without for with_it, without in zip(on, off, strict=True))
    return Measured(name, statistics.median(off), statistics.median(on), ratio, await _simulated(client, text))


async def rate(client: AsyncClient, model: str, text: str, streams: int) -> float:
    """Return the tokens a second of equal requests at once."""
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
