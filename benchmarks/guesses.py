"""Prompt lookup: a lone stream with and without guesses, on text that repeats itself and on text that does not.

`python -m benchmarks.guesses` prints tokens a second, in turn in one run; the models have random weights.
"""

import statistics
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.daemon import random_model, serving
from benchmarks.report import say
from benchmarks.stream import connect

ANSWER: dict[str, Any] = {"ignore_eos": True, "cache_prompt": False, "max_tokens": 200}
# A greedy random model soon says the same words again and again; at a high temperature it never does.
TEXTS: dict[str, dict[str, Any]] = {
    "repeats itself": {"temperature": 0},
    "does not": {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 1},
}
ROUNDS = 3


def main() -> None:
    """Measure two quantizations."""
    for kind in ("q8_0", "q4_0"):
        rates: dict[tuple[str, bool], list[float]] = {(text, fast): [] for text in TEXTS for fast in (False, True)}
        for _ in range(ROUNDS):
            for fast in (False, True):
                with serving(Path("tried"), "--capacity", "1", config=_config(random_model(kind), fast)) as socket:
                    for text, more in TEXTS.items():
                        rates[text, fast].append(uvloop.run(_rate(socket, more)))
        for text in TEXTS:
            plain, guessing = (statistics.median(rates[text, fast]) for fast in (False, True))
            say(f"{kind}, text that {text}: tokens/s without and with guesses", plain, guessing)
            say("  ratio", guessing / plain)


def _config(model: Path, fast: bool) -> str:
    return f'[models.tried]\npath = "{model}"\nspeculative = {str(fast).lower()}\ncontext_tokens = 1024\n'


async def _rate(socket: Path, more: dict[str, Any]) -> float:
    connection = await connect(socket)
    times = await connection.stream(tokens=[400 + n for n in range(16)], **ANSWER, **more)
    await connection.close()
    return times.tokens / times.seconds


if __name__ == "__main__":
    main()
