"""Two models busy at once on the same cores: tokens a second of both together, against one alone.

`python -m benchmarks.neighbours` measures them in turn in one run; the models have random weights.
"""

import asyncio
import statistics
from pathlib import Path

import uvloop

from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.streams import GREEDY, SHORT, stream
from benchmarks.targets.card import serving

MODELS = ("one", "other")
ROUNDS = 4
TOKENS = 200


def main() -> None:
    """Measure a lone stream of each model, and one of each together."""
    report = Report("neighbours")
    path = model_file("q8_0")
    tables = (f'[models.{name}]\npath = "{path}"\ncontext_tokens = 1024\nsequences = 2\n' for name in MODELS)
    with serving(Path(MODELS[0]), config="".join(tables)) as socket:
        alone, both = uvloop.run(_measure(str(socket)))
    report.say("tokens/s of one model alone, and of both together", alone, both)
    report.say("both together: ratio", both / alone)
    report.close()


async def _measure(address: str) -> tuple[float, float]:
    await asyncio.gather(*(_rate(address, model) for model in MODELS))
    alone, both = [], []
    for _ in range(ROUNDS):
        alone += [await _rate(address, model) for model in MODELS]
        both.append(sum(await asyncio.gather(*(_rate(address, model) for model in MODELS))))
    return statistics.median(alone), statistics.median(both)


async def _rate(address: str, model: str) -> float:
    timed = await stream(address, SHORT, TOKENS, GREEDY | {"model": model})
    return timed.tokens / timed.seconds


if __name__ == "__main__":
    main()
