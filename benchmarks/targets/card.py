"""The daemon, through its own protocol."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.comparison import Case, Measure
from benchmarks.generator import generate
from benchmarks.targets.process import START_S, running
from car_client import AsyncClient

COMMAND = (sys.executable, "-c", "from car_daemon.main import main; main()")


class Card:
    """`card`, as it comes."""

    name = "card"

    @contextmanager
    def started(self, case: Case) -> Iterator[Measure]:
        """Run a daemon that declares as much as the case has sequences."""
        options = ("--capacity", str(case.sequences), "--context-tokens", str(case.context_tokens))
        with serving(case.model, *options) as socket:
            yield partial(generate, str(socket))


@contextmanager
def serving(model: Path | str, *arguments: str, config: str = "") -> Iterator[Path]:
    """Run a daemon for the length of a block, ready to answer; yields its socket."""
    with serving_process(model, *arguments, config=config) as (socket, _):
        yield socket


@contextmanager
def serving_process(
    model: Path | str, *arguments: str, config: str = ""
) -> Iterator[tuple[Path, "subprocess.Popen[bytes]"]]:
    """As `serving`, with the daemon's process."""
    with tempfile.TemporaryDirectory(prefix="card-") as folder:
        socket, file = Path(folder) / "card.sock", Path(folder) / "card.toml"
        file.write_text(config, encoding="utf-8")
        flags = ("--socket", str(socket), "--model", str(model), "--config", str(file), "--log-level", "error")
        with running([*COMMAND, *flags, *arguments]) as process:
            asyncio.run(_ready(socket))
            yield socket, process


async def _ready(socket: Path) -> None:
    async with AsyncClient(socket, connect_timeout=START_S) as client:
        await client.infer("warm up", max_tokens=4)
