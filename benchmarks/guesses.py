"""Prompt lookup: a lone stream with and without guesses, on text that repeats itself and on text that does not.

`python -m benchmarks.guesses` prints tokens a second, in turn in one run; the models have random weights.
"""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.generator import generate
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from car_client.carctl.load.lengths import Lengths
from car_client.carctl.load.workload import Workload

ANSWER: dict[str, Any] = {"ignore_eos": True, "cache_prompt": False}
# A greedy random model soon says the same words again and again; at a high temperature it never does.
TEXTS: dict[str, dict[str, Any]] = {
    "repeats itself": {"temperature": 0},
    "does not": {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 1},
}
ROUNDS = 3


def main() -> None:
    """Measure two quantizations."""
    report = Report("guesses")
    for kind in ("q8_0", "q4_0"):
        rates: dict[tuple[str, bool], list[float]] = {(text, fast): [] for text in TEXTS for fast in (False, True)}
        for _ in range(ROUNDS):
            for fast in (False, True):
                with serving(Path("tried"), "--capacity", "1", config=_config(model_file(kind), fast)) as socket:
                    for text, more in TEXTS.items():
                        rates[text, fast].append(_rate(socket, more))
        for text in TEXTS:
            plain, guessing = (statistics.median(rates[text, fast]) for fast in (False, True))
            report.say(f"{kind}, text that {text}: tokens/s without and with guesses", plain, guessing)
            report.say(f"{kind}, text that {text}: ratio", guessing / plain)
    report.close()


def _config(model: Path, fast: bool) -> str:
    return f'[models.tried]\npath = "{model}"\nspeculative = {str(fast).lower()}\ncontext_tokens = 1024\n'


def _rate(socket: Path, more: dict[str, Any]) -> float:
    workload = Workload(requests=1, answers=Lengths(200, 200), options=ANSWER | more)
    return generate(str(socket), workload).tokens_per_s


if __name__ == "__main__":
    main()
