"""Two models busy at once on the same cores: tokens a second of both together, against one alone.

`python -m benchmarks.neighbours` measures them in turn in one run; the models have random weights.
"""

import asyncio
import statistics
from pathlib import Path

import uvloop

from benchmarks.daemon import random_model, serving
from benchmarks.report import say
from benchmarks.stream import connect

MODELS = ("one", "other")
ROUNDS = 4
TOKENS = 200


def main() -> None:
    """Measure a lone stream of each model, and one of each together."""
    path = random_model("q8_0")
    tables = (f'[models.{name}]\npath = "{path}"\ncontext_tokens = 1024\nsequences = 2\n' for name in MODELS)
    with serving(Path(MODELS[0]), config="".join(tables)) as socket:
        alone, both = uvloop.run(_measure(socket))
    say("tokens/s of one model alone, and of both together", alone, both)
    say("  ratio", both / alone)


async def _measure(socket: Path) -> tuple[float, float]:
    await asyncio.gather(*(_stream(socket, model) for model in MODELS))
    alone, both = [], []
    for _ in range(ROUNDS):
        alone += [await _stream(socket, model) for model in MODELS]
        both.append(sum(await asyncio.gather(*(_stream(socket, model) for model in MODELS))))
    return statistics.median(alone), statistics.median(both)


async def _stream(socket: Path, model: str) -> float:
    connection = await connect(socket)
    prompt = [400 + number for number in range(16)]
    times = await connection.stream(
        model=model, tokens=prompt, max_tokens=TOKENS, temperature=0, ignore_eos=True, cache_prompt=False
    )
    await connection.close()
    return times.tokens / times.seconds


if __name__ == "__main__":
    main()
