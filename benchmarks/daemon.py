"""A daemon with a random-weight model, to be measured."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from car_client import AsyncClient
from tools.random_model import generate

OUT = Path(__file__).parent / "out"
START_S = 60


def random_model(kind: str) -> Path:
    """Return a random-weight model of 135M dimensions, generated once for each quantization."""
    path = OUT / f"random-135m-{kind}.gguf"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        print(f"generating {path.name} ...", flush=True)
        generate(path, preset="135m", type=kind)
    return path


@contextmanager
def serving(model: Path, *arguments: str, config: str = "") -> Iterator[Path]:
    """Run a daemon for the length of a block, ready to answer; yields its socket."""
    with tempfile.TemporaryDirectory(prefix="card-") as folder:
        socket = Path(folder) / "card.sock"
        file = Path(folder) / "card.toml"
        file.write_text(config)
        daemon = subprocess.Popen(
            [
                *(sys.executable, "-c", "from car_daemon.main import main; main()"),
                *("--socket", str(socket), "--model", str(model), "--config", str(file)),
                *("--log-level", "error", *arguments),
            ]
        )
        try:
            asyncio.run(_ready(socket))
            yield socket
        finally:
            daemon.terminate()
            daemon.wait(timeout=START_S)


async def _ready(socket: Path) -> None:
    async with AsyncClient(socket, connect_timeout=START_S) as client:
        await client.infer("warm up", max_tokens=4)
