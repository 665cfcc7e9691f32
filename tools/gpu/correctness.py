"""Whether answers on the GPU are those of the CPU: alone, beside others, parked, with shared prefixes, with images."""

import asyncio
import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from car_client import AsyncClient
from car_client.results import Answer
from car_protocol.infer import Priority
from tools.gpu.served import LAYERS, Served, answers, prompts
from tools.gpu.verdicts import Verdict, agreement, widest_gap
from tools.random_model import generate
from tools.random_models.projector import generate_projector

STREAMS = 8
_TOKENS = 48
# An answer that is interrupted, and the one that interrupts it; its beginning is compared.
_LONG = 512
_PREFIX = 512


class Correctness:
    """The checks on one model; the reference answers each prompt alone on the CPU."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._reference = Served(served.model, "cpu")

    def verdicts(self) -> list[Verdict]:
        """Return all verdicts."""
        short, shared = prompts(STREAMS), [[*prompts(1, _PREFIX)[0], 301, 300 + each] for each in range(STREAMS)]
        with self._reference.daemon(sequences=1) as (socket, _):
            expected = asyncio.run(answers(socket, short, _TOKENS, together=False))
            expected_shared = asyncio.run(answers(socket, shared, _TOKENS, together=False))
        with self._served.daemon(sequences=STREAMS) as (socket, _):
            alone = asyncio.run(answers(socket, short, _TOKENS, together=False))
            together = asyncio.run(answers(socket, short[::-1], _TOKENS, together=True))[::-1]
            copied = asyncio.run(answers(socket, shared, _TOKENS, together=True))
        with self._served.daemon(sequences=1) as (socket, _):
            parked, count = asyncio.run(_parked(socket, short[0], short[1]))
        return [
            agreement("greedy answers, one at a time", _gaps(expected, alone)),
            agreement(f"greedy answers, {STREAMS} streams", _gaps(expected, together)),
            agreement("a parked answer", _gaps(expected[:1], [parked])),
            Verdict("it was parked", count == 1, f"{count} requests parked, beside the urgent one"),
            agreement("answers with a shared prefix", _gaps(expected_shared, copied)),
            _copied(copied),
        ]


def _gaps(expected: Sequence[Answer], found: Sequence[Answer]) -> list[float]:
    pairs = zip(expected, found, strict=True)
    return [widest_gap(known.logprobs or [], given.tokens or []) for known, given in pairs]


def _copied(found: Sequence[Answer]) -> Verdict:
    cached = sum(each.usage.cached_tokens for each in found)
    least = _PREFIX * (STREAMS - 1) // 2
    return Verdict("prefixes are copied", cached >= least, f"{cached} tokens not computed again, at least {least}")


async def _parked(socket: Path, background: list[int], urgent: list[int]) -> tuple[Answer, int]:
    """Return the answer that an urgent request interrupted, and the requests that were parked meanwhile."""
    started = asyncio.Event()
    async with AsyncClient(socket) as client, AsyncClient(socket) as other:
        running = asyncio.create_task(_stream(client, background, _LONG, "throughput", started.set))
        await started.wait()
        # The only sequence has the urgent request as long as that has chunks to come.
        begun = asyncio.Event()
        asking = asyncio.create_task(_stream(other, urgent, _LONG, "latency_critical", begun.set))
        await begun.wait()
        parked = (await other.status()).capacity.parked
        await asking
        return await running, parked


async def _stream(
    client: AsyncClient, prompt: list[int], tokens: int, priority: Priority, chunk: Callable[[], None]
) -> Answer:
    """Return a streamed answer with its tokens; calls `chunk` at each piece."""
    stream = client.infer_stream(
        tokens=prompt, max_tokens=tokens, temperature=0, ignore_eos=True, return_tokens=True, priority=priority
    )
    async for _ in stream:
        chunk()
    assert stream.answer is not None
    return stream.answer


def images(folder: Path, device: str) -> Verdict:
    """Return whether an image is read on a device as on the CPU, by a small model with a random projector."""
    model, projector = folder / "blind.gguf", folder / "projector.gguf"
    generate(model, preset="tiny")
    generate_projector(projector)
    config = f'[models.seeing]\npath = "{model}"\nprojector = "{projector}"\ngpu_layers = {{}}\n'
    found = []
    for each in ("cpu", device):
        with Served(model, each).daemon(sequences=1, config=config.format(LAYERS[each])) as (socket, _):
            found.append(asyncio.run(_described(socket)))
    return agreement("an answer about an image", _gaps(found[:1], found[1:]))


async def _described(socket: Path) -> Answer:
    file = io.BytesIO()
    Image.linear_gradient("L").save(file, "PNG")
    image = {"type": "image", "data": base64.b64encode(file.getvalue()).decode()}
    async with AsyncClient(socket) as client:
        return await client.infer(
            messages=[{"role": "user", "content": [image, {"type": "text", "text": "Describe this."}]}],
            model="seeing",
            max_tokens=_TOKENS,
            temperature=0,
            ignore_eos=True,
            logprobs=5,
            return_tokens=True,
        )
