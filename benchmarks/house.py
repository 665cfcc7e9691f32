"""What apps keep of their speed when all use one model: card by its socket and its door, and llama-server, in turn.

`python -m benchmarks.house [--minutes M] [--rounds N] [--apps NAME,...] [--png FILE]`: `carctl bench --house` on
SmolLM2 (`make real-model`) with 4 sequences, with another seed in each round; llama-server takes part in two modes with
its path in LLAMA_SERVER. The picture has the median round, by what the first app keeps, of card's socket and of
llama-server's better mode.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from benchmarks.targets.llama_server import found_llama_servers
from benchmarks.targets.process import free_port, running, wait_for
from car_client.carctl.bench.bar_picture import draw
from car_client.carctl.bench.completions import COMPLETION
from car_client.carctl.bench.generator import Target, connect
from car_client.carctl.bench.house_apps import APPS, App, parse_apps
from car_client.carctl.bench.house_figures import HouseFigures, house_figures
from car_client.carctl.bench.house_run import House, HouseServer
from car_client.carctl.bench.house_table import TITLE, bars, table

SEQUENCES, CONTEXT_TOKENS = 4, 2048


def main() -> None:
    """Measure the rounds, print each one, and the medians at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=6.0, help="of a round on one server (default: 6)")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--apps", type=parse_apps, default=list(APPS.values()))
    parser.add_argument("--png", metavar="FILE")
    given = parser.parse_args()
    report, found = Report("house"), list[list[HouseFigures]]()
    with ExitStack() as stack:
        servers = list(_servers(stack))
        for seed in range(1, given.rounds + 1):
            found.append(measured(servers, given.apps, given.minutes, seed))
    for own in zip(*found, strict=True):
        for kept in zip(*(figures.apps for figures in own), strict=True):
            name = f"{own[0].server}: {kept[0].app} keeps"
            report.say(f"{name}, p50", statistics.median(each.p50 for each in kept), min(each.p50 for each in kept))
            report.say(f"{name}, p95", statistics.median(each.p95 for each in kept), min(each.p95 for each in kept))
    if given.png:
        card, _, *others = sorted(found, key=lambda each: each[0].apps[0].p50)[len(found) // 2]
        best = max(others, key=lambda figures: sum(each.p50 for each in figures.apps), default=None)
        draw(TITLE, bars([card, best] if best else [card]), given.png)
    report.close(rounds=found)


def measured(servers: Sequence[HouseServer], apps: Sequence[App], minutes: float, seed: int) -> list[HouseFigures]:
    """Return the figures of each server in one round, and print them."""
    house = House(servers, 60 * minutes, seed)
    found = [house_figures(stay, apps) for stay in asyncio.run(house.run(apps))]
    for each in found:
        print(*table(each, house.left_out), sep="\n", flush=True)
    return found


def _servers(stack: ExitStack) -> Iterator[HouseServer]:
    """Start the servers, which stay until the end of the stack."""
    model = str(model_file("smollm2"))
    socket = stack.enter_context(serving(model, "--capacity", str(SEQUENCES), "--context-tokens", str(CONTEXT_TOKENS)))
    yield HouseServer("card", partial(_connected, str(socket)))
    yield HouseServer("card's door", partial(_connected, stack.enter_context(_door(socket))))
    for server in found_llama_servers(("split", "unified")):
        address = stack.enter_context(server.serving(model, SEQUENCES, CONTEXT_TOKENS)).removesuffix(COMPLETION)
        yield HouseServer(server.name, partial(_connected, address))


async def _connected(address: str, label: str) -> Target:
    return await connect(address, {"temperature": 0, "client": label})


@contextmanager
def _door(socket: Path) -> Iterator[str]:
    """Run a door on a port that needs no key."""
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="card-") as folder:
        variables = [f"{name}={folder}" for name in ("XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")]
        command = [str(Path(sys.executable).with_name("card-http")), "--socket", str(socket)]
        with running(["env", *variables, *command, "--listen", address, "--no-key"]) as process:
            wait_for(f"http://{address}/health", process)
            yield f"http://{address}"


if __name__ == "__main__":
    main()
