"""Two apps that share the daemon: four background streams of one, questions of the other beside them."""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from car_client import AsyncClient
from car_client.carctl.terminal.text import columns
from car_client.options import InferOptions

STREAMS = 4
ALONE, BESIDE = 5, 20  # questions
PAUSE_S = 0.5
OPTIONS: InferOptions = {"client": "batch", "priority": "throughput", "ignore_eos": True, "max_tokens": 400}
_CARCTL = Path(sys.executable).parent / "carctl"


async def show_two_apps(socket: str, question: str) -> None:
    """Measure questions alone and beside the streams; print the status while both work, and both figures."""
    print(f"two apps at once: `batch` runs {STREAMS} background streams, `editor` asks every {PAUSE_S} s", flush=True)
    async with AsyncClient(socket) as client:
        alone = await _first_tokens(client, question, ALONE)
        before = (await client.status()).capacity
        async with _batch(socket):
            middle = await _first_tokens(client, question, BESIDE // 2)
            print("$ carctl status", flush=True)
            status = await asyncio.create_subprocess_exec(_CARCTL, "--socket", socket, "status")
            await status.wait()
            beside = [*middle, *await _first_tokens(client, question, BESIDE // 2)]
            during = (await client.status()).capacity
    rows = [("", "first token", "longest", "free of capacity")]
    for name, times, capacity in (
        ("editor alone", alone, before),
        (f"editor beside {STREAMS} streams", beside, during),
    ):
        free = f"{capacity.available} of {capacity.capacity}"
        rows.append((name, f"{statistics.median(times):.1f} ms", f"{max(times):.1f} ms", free))
    print("", *columns(rows), sep="\n", flush=True)


@asynccontextmanager
async def _batch(socket: str) -> AsyncIterator[None]:
    """Run the other app for the length of a block, in a process of its own; its streams have begun when that starts."""
    command = (sys.executable, "-m", "tools.two_apps", socket)
    app = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert app.stdout is not None
        await app.stdout.readline()
        yield
    finally:
        app.kill()
        await app.wait()


async def _run_batch(socket: str) -> None:
    """Run the background streams until the process is ended; print a line once all have begun."""
    begun = [asyncio.Event() for _ in range(STREAMS)]
    streams = [asyncio.create_task(_stream_on(socket, event)) for event in begun]
    await asyncio.gather(*(event.wait() for event in begun))
    print("begun", flush=True)
    await asyncio.gather(*streams)


async def _stream_on(socket: str, begun: asyncio.Event) -> None:
    """Stream one answer after the other."""
    async with AsyncClient(socket) as client:
        while True:
            async for _ in client.infer_stream("Once upon a time", **OPTIONS):
                begun.set()


async def _first_tokens(client: AsyncClient, question: str, count: int) -> list[float]:
    """Return the milliseconds to the first token of questions, one every half second."""
    found = []
    for _ in range(count):
        started = time.perf_counter()
        stream = client.infer_stream(messages=[{"role": "user", "content": question}], client="editor", max_tokens=24)
        async for _chunk in stream:
            found.append((time.perf_counter() - started) * 1000)
            break
        await stream.aclose()
        await asyncio.sleep(PAUSE_S)
    return found


if __name__ == "__main__":
    asyncio.run(_run_batch(sys.argv[1]))
