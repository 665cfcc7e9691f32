"""Prompt lookup on and off: texts that repeat their prompts, and texts that do not.

`python -m benchmarks.guesses [--turns 5] [--model smollm2] [--streams 1]` prints one table: tokens a second, in turn in
one run, and the speed-up that the same answers would have on a machine whose rows cost next to nothing; then a verdict
a line. One stream takes some minutes.
"""

import argparse
import asyncio
import json
import statistics
import urllib.request
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks.models import model_file
from benchmarks.report import Report, figure, markdown
from benchmarks.targets.card import serving
from benchmarks.targets.llama_server import LlamaServer, found_llama_servers
from car_client import AsyncClient
from car_client.carctl.bench.completions import COMPLETION
from car_engine.batching.costs import StepCosts
from car_engine.batching.decode import DecodeBatch, Guesser
from car_engine.batching.guesses import PromptLookup
from car_engine.batching.sequences import Sequence

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
_LIST = """1. Open the harbour gate at seven.
2. Count the boats and write the number down.
3. Bring the salt to the market before noon.
4. Check the ropes of the old pier.
5. Read the height of the tide aloud.
6. Close the gate when the last boat has left.
7. Put the book back into the lighthouse.
"""
_JSON = (
    '{"name": "Velmora", "hills": 2, "market": {"day": "Tuesday", "hour": 7}, "goods": ["herring", "salt", "rope"], '
    '"pier": {"year": 1871, "stone": "granite"}}'
)
_SHOP = (
    "Anna opened the shop at nine. She sold three loaves of bread and two cakes before noon. In the afternoon the "
    "baker brought fresh rolls. Anna counted the money twice and wrote the sum into the book. Then Anna swept the "
    "floor, closed the windows and locked the door. On her way home Anna met her brother, who carried a basket of "
    "apples. Anna took one apple and thanked him."
)
_TALK = """Anna: Did the boats come in before the storm?
Erik: Two of them did, and the third waited behind the old pier until the morning.
Anna: Who wrote the height of the tide into the book?
Erik: The lighthouse keeper did, as he does each morning.
Anna: Then the council will know when to open the harbour gate.
"""
# SmolLM2 repeats most of these texts in its answers.
REPEATING = {
    "copy": f"Repeat this text word for word:\n\n{_TEXT}",
    "copy of JSON": f"Repeat this JSON exactly:\n\n{_JSON}",
    "edit": f"Write this text again, but replace Velmora by Astrun:\n\n{_TEXT} {_SHOP}",
    "edit of a list": f"Write this list again, but replace the word boats by ships:\n\n{_LIST}",
    "quotes": f"Quote the sentences of this text that are about the harbour:\n\n{_TEXT} {_SHOP}",
    "summary": f"Quote the three most important sentences of this text:\n\n{_TEXT} {_SHOP}",
    "summary of a talk": f"Summarize this dialogue:\n\n{_TALK}",
}
# Of these it repeats little, and answers in few tokens, though asked for copies and edits.
LOOSE = {
    "code, not copied": f"Repeat this code exactly, in one block:\n\n{_CODE}",
    "code, not edited": f"Write this code again with `price` renamed to `cost`:\n\n{_CODE}",
    "own words": f"Summarize this text in its own words, sentence by sentence:\n\n{_TEXT}",
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
TOKENS, CONTEXT_TOKENS = 160, 2048
# The names of llama-server's lookups: this one has no state beside the text.
SERVER_LOOKUP = "ngram-simple"
# What the ratios of on to off have to reach, at least: of free texts, of loose answers, of repeating ones, and of these
# in simulation. A request may lose some decodes: of a short answer that is a larger part.
FREE_LEAST, LOOSE_LEAST, REPEATING_LEAST, SIMULATED_LEAST = 0.98, 0.95, 1.15, 2.0
HEADINGS = ("text", "tokens", "off, tokens/s", "on, tokens/s", "on / off", "simulated", "llama-server, on / off")
# Seconds by rows of a machine that waits for its memory.
MEMORY_BOUND = {1: 1.0, 8: 1.1, 64: 1.9}


class Measured(NamedTuple):
    """One text: tokens, median rates, the median ratio of neighbouring turns, and the simulated speed-up."""

    text: str
    tokens: int
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
    model = str(model_file(arguments.model))
    repeating, free, loose = measured(model, arguments.streams, arguments.turns)
    servers = found_llama_servers(("split",))
    others = [measured_server(model, server, arguments.turns) for server in servers]
    rows = [[each.text, str(each.tokens), *map(figure, each[2:])] for each in (*repeating, *loose, *free)]
    for row, *ratios in zip(rows, *others, strict=False):
        row += map(figure, ratios)
    print(markdown(HEADINGS[: 6 + len(servers)], [row + [""] * (6 + len(servers) - len(row)) for row in rows]))
    _judge(report, "texts without repetition, on / off, least and median", [each.ratio for each in free], FREE_LEAST)
    _judge(report, "loose answers: on / off", [each.ratio for each in loose], LOOSE_LEAST)
    _judge(report, "copies, edits, summaries: on / off", [each.ratio for each in repeating], REPEATING_LEAST)
    simulated = [each.simulated for each in repeating]
    _judge(report, "the same at rows that cost next to nothing", simulated, SIMULATED_LEAST)
    for ratios in others:
        report.say("the same by llama-server's own lookup, least and median", min(ratios), statistics.median(ratios))
    report.close(texts=[each._asdict() for each in (*repeating, *loose, *free)])


def _judge(report: Report, what: str, ratios: list[float], wanted: float) -> None:
    """Print the least ratio and the median, and whether the least reaches what is wanted."""
    least = min(ratios)
    report.say(f"{what}: {'reaches' if least >= wanted else 'is below'} {wanted:g}", least, statistics.median(ratios))


def measured(model: str, streams: int, turns: int) -> list[list[Measured]]:
    """Return the figures of each text of three kinds: repeating, free, and answered loosely."""
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
    data = json.dumps(request).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as answer:
        return float(json.load(answer)["timings"]["predicted_per_second"])


async def _measured(address: str, streams: int, turns: int) -> list[list[Measured]]:
    """Return the texts by kind, each run with and without guesses in turn."""
    async with AsyncClient(address) as client:
        return [
            [await _text(client, *text, streams, turns) for text in kind.items()] for kind in (REPEATING, FREE, LOOSE)
        ]


async def _text(client: AsyncClient, name: str, text: str, streams: int, turns: int) -> Measured:
    """Return the figures of one text; the first turn only warms up."""
    rates: dict[str, list[float]] = {"off": [], "on": []}
    for turn in range(turns + 1):
        for model in ("off", "on") if turn % 2 else ("on", "off"):
            rates[model].append(await rate(client, model, text, streams))
    off, on = rates["off"][1:], rates["on"][1:]
    ratio = statistics.median(with_it / without for with_it, without in zip(on, off, strict=True))
    prompt, answer = await _answer(client, text)
    return Measured(name, len(answer), statistics.median(off), statistics.median(on), ratio, _simulated(prompt, answer))


async def rate(client: AsyncClient, model: str, text: str, streams: int, tokens: int = TOKENS) -> float:
    """Return the tokens a second of equal requests at once, after their first ones."""
    answers = await asyncio.gather(*(client.call("infer", _request(model, text, tokens)) for _ in range(streams)))
    written = sum(answer["usage"]["completion_tokens"] - 1 for answer in answers)
    return float(1000 * written / max(answer["timings"]["decode_ms"] for answer in answers))


async def _answer(client: AsyncClient, text: str) -> tuple[list[int], list[int]]:
    """Return the tokens of the prompt of a text and of its answer."""
    request = _request("off", text)
    prompt = (await client.call("tokenize", {key: request[key] for key in ("model", "messages")}))["tokens"]
    return prompt, (await client.call("infer", {**request, "return_tokens": True}))["tokens"]


def _simulated(prompt: list[int], answer: list[int]) -> float:
    """Return how many times as fast an answer is with guesses where rows cost next to nothing."""
    sequence = Sequence(0)
    sequence.start(prompt, 1)
    sequence.commit(len(prompt))
    sequence.lookup = lookup = PromptLookup([*prompt, answer[0]])
    costs = StepCosts(MEMORY_BOUND)
    guesser, seconds, place = Guesser(costs, 64, inf), 0.0, 1
    while place < len(answer):
        batch = DecodeBatch([sequence], [])
        guesser.plan(batch, 1 << 20, costs.decode(1))
        cost = costs.decode(batch.rows)
        said = zip(sequence.guess, answer[place:], strict=False)
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], said))
        for token in answer[place : place + right + 1]:
            lookup.add(token)
        sequence.guess = []
        seconds, place = seconds + cost, place + right + 1
    return (len(answer) - 1) / seconds


def _request(model: str, text: str, tokens: int = TOKENS) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        # From its own cells a prompt has another answer: a token by itself rounds in another way than in a chunk.
        "cache_prompt": False,
    }


if __name__ == "__main__":
    main()
