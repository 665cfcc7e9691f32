"""Start the daemon on its built-in model, stream one answer from it, and stop it again."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from car_client import AsyncClient

QUESTION = "What is card?"
READY_S = 60
BIN = Path(sys.executable).parent


def main() -> int:
    """Run the demo; return 0 where the daemon answered and stopped cleanly."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CAR_SOCKET": str(Path(folder) / "card.sock")}
        print("$ card &", flush=True)
        daemon = subprocess.Popen([BIN / "card", "--log-level", "warning"], env=environment)
        try:
            answered = _ask(environment)
        finally:
            print("$ kill %1", flush=True)
            daemon.send_signal(signal.SIGTERM)
            stopped = daemon.wait(timeout=READY_S)
    print(f"the daemon stopped with exit code {stopped}")
    return answered or stopped


def _ask(environment: dict[str, str]) -> int:
    """Ask the question and show the capacity; a request waits for a model that is still loading."""
    asyncio.run(_started(environment["CAR_SOCKET"]))
    print(f'$ carctl infer "{QUESTION}"', flush=True)
    question: list[str | Path] = [BIN / "carctl", "infer", "--temperature", "0", QUESTION]
    answered = subprocess.run(question, env=environment, timeout=READY_S, check=False).returncode
    print("$ carctl capacity", flush=True)
    return answered or subprocess.run([BIN / "carctl", "capacity"], env=environment, check=False).returncode


async def _started(socket: str) -> None:
    """Return once the daemon answers."""
    async with AsyncClient(socket, connect_timeout=READY_S) as client:
        await client.connect()


sys.exit(main())
