"""What a form costs: grammars that the model agrees with and never agrees with, log-probabilities, stop strings.

`python -m benchmarks.forms` prints milliseconds a token, and ratios to plain text taken in turn in one run.
"""

import asyncio
import statistics
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.daemon import random_model, serving
from benchmarks.report import say
from benchmarks.stream import connect

BASE: dict[str, Any] = {"temperature": 0.8, "seed": 7, "ignore_eos": True, "cache_prompt": False, "max_tokens": 64}
JSON_GRAMMAR = r"""
root ::= value
value ::= object | array | string | number
object ::= "{" (string ":" value ("," string ":" value)*)? "}"
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" [^"\\\x00-\x1f]* "\""
number ::= [0-9]+
"""
FORMS: dict[str, dict[str, Any]] = {
    "plain text": {},
    "a grammar it agrees with (any text)": {"grammar": r"root ::= [^\x00]*"},
    "a schema it never agrees with": {"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 500}},
    "a GBNF grammar it never agrees with": {"grammar": JSON_GRAMMAR},
    "20 log-probabilities": {"logprobs": 20},
    "16 stop strings": {"stop": [f"never {number}" for number in range(16)]},
    "dry": {"dry": {"multiplier": 0.8}},
    "mirostat": {"mirostat": {"version": 2}},
}
ROUNDS = 3


def main() -> None:
    """Measure every form, alone and for eight streams."""
    with serving(random_model("q8_0"), "--capacity", "8", "--context-tokens", "1024") as socket:
        for streams in (1, 8):
            uvloop.run(_measure(socket, streams))


async def _measure(socket: Path, streams: int) -> None:
    gaps: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(ROUNDS):
        for form, more in FORMS.items():
            gaps[form].append(await _gap(socket, streams, more))
    plain = statistics.median(gaps["plain text"])
    for form, seen in gaps.items():
        say(f"{streams} x {form}: ms a token, ratio to plain", statistics.median(seen), statistics.median(seen) / plain)


async def _gap(socket: Path, streams: int, more: dict[str, Any]) -> float:
    """Return the mean time between tokens of streams that run together."""
    connections = [await connect(socket) for _ in range(streams)]
    asked = (
        one.stream(tokens=[400 + number] * 16, **{**BASE, "seed": number, **more})
        for number, one in enumerate(connections)
    )
    times = await asyncio.gather(*asked)
    for one in connections:
        await one.close()
    return statistics.fmean(1000 * one.seconds / one.tokens for one in times)


if __name__ == "__main__":
    main()
