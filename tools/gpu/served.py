"""Daemons of the GPU suite: on the GPU, and on the CPU as the reference."""

import asyncio
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.targets.card import serving_process
from car_client import AsyncClient
from car_client.results import Answer
from car_protocol.status import EngineStatus

# Layers by device: all of them, or none.
LAYERS = {"gpu": "-1", "cpu": "0"}
# The reference computes on the CPU alone: llama.cpp computes long prompts on a GPU even without layers there.
_HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "GGML_VK_VISIBLE_DEVICES": "-1"}


@dataclass(frozen=True, slots=True)
class Served:
    """A model on a device, served by a daemon."""

    model: Path
    device: str

    @contextmanager
    def daemon(
        self, *, sequences: int, context_tokens: int = 1024, config: str = ""
    ) -> Iterator[tuple[Path, "subprocess.Popen[bytes]"]]:
        """Run it for the length of a block, ready to answer; yields its socket and process."""
        flags = ("--gpu-layers", LAYERS[self.device], "--capacity", str(sequences))
        with (
            self.visible(),
            serving_process(self.model, *flags, "--context-tokens", str(context_tokens), config=config) as found,
        ):
            yield found

    @contextmanager
    def visible(self) -> Iterator[None]:
        """Hide GPUs from the programs that are started in a block, where the device is the CPU."""
        with environment(_HIDDEN if self.device == "cpu" else {}):
            yield


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Change variables for the length of a block."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def prompts(count: int, length: int = 24) -> list[list[int]]:
    """Return prompts of tokens that every vocabulary has, no two alike."""
    return [[300 + (number * 131 + place * 17) % 200 for place in range(length)] for number in range(count)]


async def answer(client: AsyncClient, prompt: list[int], tokens: int, **options: object) -> Answer:
    """Return a greedy answer with the likeliest tokens at each place."""
    return await client.infer(
        tokens=prompt,
        max_tokens=tokens,
        temperature=0,
        ignore_eos=True,
        logprobs=5,
        return_tokens=True,
        **options,  # type: ignore[arg-type]  # priority alone, whose type the caller's literal has
    )


async def answers(socket: Path, given: Sequence[list[int]], tokens: int, *, together: bool) -> list[Answer]:
    """Return greedy answers, of requests at once or one after the other."""
    async with AsyncClient(socket) as client:
        if together:
            return list(await asyncio.gather(*(answer(client, prompt, tokens) for prompt in given)))
        return [await answer(client, prompt, tokens) for prompt in given]


async def running_answers(client: AsyncClient, count: int, tokens: int) -> list[asyncio.Task[Answer]]:
    """Return the tasks of as many greedy answers once all of them run; raises RuntimeError if one ended before."""
    streams = [asyncio.create_task(answer(client, prompt, tokens)) for prompt in prompts(count)]
    while len((await client.status()).sequences) < count:
        if any(stream.done() for stream in streams):
            raise RuntimeError(f"a request ended before all {count} ran: {await asyncio.gather(*streams)}")
    return streams


async def engine(client: AsyncClient) -> EngineStatus:
    """Return the engine of the default model."""
    return (await client.status()).models[0].engines[0]
