"""Start the daemon, stream one answer from it, show two apps that share it, and stop it again.

`python -m tools.demo [--model real] [--question TEXT]`: the built-in guide answers unless the real model is named.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from car_client import AsyncClient
from tools.real_model import SMOLLM2, fetch
from tools.two_apps import show_two_apps

QUESTIONS = {"guide": "What is card?", "real": "Why is the sky blue? Answer in two sentences."}
READY_S = 60
BIN = Path(sys.executable).parent


def main() -> int:
    """Run the demo; return 0 where the daemon answered and stopped cleanly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=QUESTIONS, default="guide")
    parser.add_argument("--question")
    options = parser.parse_args()
    model: list[str | Path] = ["--model", fetch(SMOLLM2)] if options.model == "real" else []
    with tempfile.TemporaryDirectory() as folder:
        # An empty configuration, because the user's own may have another default model.
        (Path(folder) / "car").mkdir()
        (Path(folder) / "car" / "card.toml").touch()
        environment = {**os.environ, "CAR_SOCKET": str(Path(folder) / "card.sock"), "XDG_CONFIG_HOME": folder}
        print(f"$ card {' '.join(map(str, model))}".rstrip(), "&", flush=True)
        daemon = subprocess.Popen([BIN / "card", *model, "--log-level", "warning"], env=environment)
        try:
            answered = _ask(environment, options.question or QUESTIONS[options.model])
            print("$ kill %1", flush=True)
        finally:
            daemon.send_signal(signal.SIGTERM)
            stopped = daemon.wait(timeout=READY_S)
    print(f"the daemon stopped with exit code {stopped}")
    return answered or stopped


def _ask(environment: dict[str, str], question: str) -> int:
    """Ask the question and show the capacity; a request waits for a model that is still loading."""
    asyncio.run(_started(environment["CAR_SOCKET"]))
    print(f'$ carctl infer "{question}"', flush=True)
    command: list[str | Path] = [BIN / "carctl", "infer", "--temperature", "0", question]
    answered = subprocess.run(command, env=environment, timeout=READY_S, check=False).returncode
    print("$ carctl capacity", flush=True)
    shown = subprocess.run([BIN / "carctl", "capacity"], env=environment, check=False).returncode
    asyncio.run(show_two_apps(environment["CAR_SOCKET"], question))
    return answered or shown


async def _started(socket: str) -> None:
    """Return once the daemon answers."""
    async with AsyncClient(socket, connect_timeout=READY_S) as client:
        await client.connect()


if __name__ == "__main__":
    sys.exit(main())
