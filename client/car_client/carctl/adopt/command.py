"""`carctl adopt`: shows what an adoption would do, asks, does it, proves it, and goes back with --undo."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from car_client.carctl.adopt.doors import door_of
from car_client.carctl.adopt.journal import Adoption, Journal
from car_client.carctl.adopt.listening import listening
from car_client.carctl.adopt.plan import Plan, Snapshot, decide
from car_client.carctl.adopt.servers import SERVERS, OtherServer, is_answered_by
from car_client.carctl.adopt.takeover import NotAdopted, Takeover
from car_client.carctl.config.card_toml import CardToml, config_path
from car_client.carctl.failure import WrongUse
from car_client.carctl.http.command import port_number
from car_client.carctl.service.steps import Steps
from car_client.carctl.terminal.confirmation import confirmed
from car_client.client import Client
from car_client.door.humans import humans

_LOUD = "LOUD: port {} needs no key: every program and user of this machine can send requests as you"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("server", choices=list(SERVERS), metavar="SERVER", help=", ".join(SERVERS))
    ports = ", ".join(str(each.port) for each in SERVERS.values())
    parser.add_argument("--port", type=port_number, metavar="P", help=f"its port (default: {ports})")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    parser.add_argument("--yes", action="store_true", help="adopt without a question")
    parser.add_argument("--now", action="store_true", help="stop the other server without waiting for its answers")
    parser.add_argument("--undo", action="store_true", help="give all back: port, card.toml, the other server")


def run(client: Client, options: Namespace) -> None:
    """Adopt a server or go back; raises CardError, and then the port is as it was."""
    if options.system:
        raise WrongUse("a port is adopted for the user alone: leave --system out")
    server, journal = SERVERS[options.server], Journal(options.server)
    adoption = journal.read()
    steps = Steps()
    takeover = Takeover(client, server, journal, door_of(steps, options.socket), steps, options.socket)
    if options.undo:
        _go_back(takeover, adoption)
        return
    if adoption is not None:
        raise WrongUse(f"{server.title} is adopted on port {adoption.port}: --undo gives it back")
    seen = look(server, options.port or server.port, steps)
    plan = decide(seen)
    print(*lines(seen, plan), sep="\n", flush=True)
    if options.dry_run:
        return
    if plan.by_hand:
        raise NotAdopted(f"{server.title} is not yours to stop: run `{plan.by_hand}`, then this again")
    if not options.yes and not confirmed(f"adopt {server.title}"):
        raise NotAdopted("nothing was changed")
    running = seen.running
    begun = Adoption(seen.port, plan.way, back_by_hand=plan.back_by_hand)
    if running is not None:
        begun.folder, begun.env = running.folder, running.env
    print(takeover.adopt(begun, plan.tables, pid=None if running is None else running.pid, now=options.now))
    print(_LOUD.format(seen.port))
    print(f"go back: carctl adopt {options.server} --undo")


def look(server: OtherServer, port: int, steps: Steps) -> Snapshot:
    """Read what the decision needs; changes nothing."""
    home = Path.home()
    running = listening(port, server.variables)
    switch = tuple(str(home / each) if "/" in each else each for each in server.switch)
    unit = running.unit if running is not None else server.unit
    scope = ["--user"] if running is not None and not running.system else []
    return Snapshot(
        title=server.title,
        port=port,
        uid=os.getuid(),
        people=humans(),
        configured=CardToml(config_path()).models,
        candidates=server.candidates(running, os.environ, home),
        running=running,
        recognized=running is not None and is_answered_by(server, port),
        unit=server.unit if server.unit and steps.succeeds("systemctl", "cat", server.unit) else "",
        enabled=bool(unit) and steps.succeeds("systemctl", *scope, "--quiet", "is-enabled", unit),
        switch=switch if switch and Path(switch[0]).is_file() else (),
    )


def lines(seen: Snapshot, plan: Plan) -> Iterator[str]:
    """Yield the plan for people."""
    for name, table in plan.tables.items():
        aliases = table.get("aliases")
        also = f" (also {', '.join(map(str, aliases))})" if isinstance(aliases, list) else ""
        place = str(table["path"]).replace(f"{Path.home()}/", "~/")
        yield f"serve {name}{also} from {place}, 0 bytes copied"
    yield from plan.notes
    running = seen.running
    if running is None:
        yield f"port {seen.port} is free"
    else:
        place = running.unit or (f"process {running.pid}" if running.pid else f"a process of user {running.uid}")
        how = plan.by_hand or " ".join(plan.way.stop if plan.way else ()) or "SIGTERM"
        yield f"stop {seen.title}, {place}: {how}"
    yield f"serve port {seen.port} without a key, for the programs of this machine"


def _go_back(takeover: Takeover, adoption: Adoption | None) -> None:
    if adoption is None:
        raise WrongUse(f"{takeover.server.title} is not adopted")
    takeover.undo(adoption)
    print(f"port {adoption.port} is given back, and card.toml is as before; carctl down ends the daemon")
    if adoption.back_by_hand:
        print(f"if {takeover.server.title} ran as a service: {adoption.back_by_hand}")
