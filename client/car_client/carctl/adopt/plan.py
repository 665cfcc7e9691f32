"""What an adoption does, decided from what was read: nothing here changes anything."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from car_client.carctl.adopt.candidates import Candidate
from car_client.carctl.adopt.listening import Listening
from car_client.errors import CardError

_GUIDE = "guide"
_ROOT = 0


class Snapshot(Struct, frozen=True, kw_only=True):
    """What was read of this machine; `recognized` says that the server answers at the port in its dialect."""

    title: str
    port: int
    uid: int
    people: Sequence[str]
    configured: Mapping[str, Mapping[str, Any]]
    candidates: Sequence[Candidate]
    running: Listening | None = None
    recognized: bool = False
    unit: str = ""  # of the machine: installed, and stopped
    enabled: bool = False  # the unit of the process starts by itself
    switch: tuple[str, ...] = ()


class ServerCommands(Struct, frozen=True):
    """The commands that stop and start the other server; without `stop` its process gets SIGTERM."""

    stop: tuple[str, ...] = ()
    start: tuple[str, ...] = ()


class Plan(Struct, frozen=True):
    """The tables to add, what to say about them, and the way of the other server."""

    tables: dict[str, dict[str, object]]
    notes: list[str]
    way: ServerCommands | None  # None: it does not run
    by_hand: str = ""  # to run before this, because this user may not
    back_by_hand: str = ""  # to run after going back


class CannotAdopt(CardError):
    """The port stays as it is; the message says why and what to do."""


def decide(seen: Snapshot) -> Plan:
    """Return the plan; raises CannotAdopt."""
    if len(seen.people) > 1:
        facts = f"every program could send requests as you, and here are {', '.join(seen.people)}"
        raise CannotAdopt(f"a port without keys is for a machine of one person: {facts}; see carctl http enable")
    if seen.running is not None and not seen.recognized:
        process = " ".join(seen.running.arguments[:2]) or f"a process of user {seen.running.uid}"
        raise CannotAdopt(f"port {seen.port} has another program than {seen.title}: {process}; give its --port")
    tables: dict[str, dict[str, object]] = {}
    notes = list(_added(seen, tables))
    if not tables and not any(each.name in seen.configured for each in seen.candidates):
        raise CannotAdopt(". ".join([f"there is no model of {seen.title} that card can serve", *notes]))
    running = seen.running
    if running is None:
        back = f"sudo systemctl enable --now {seen.unit}" if seen.unit else ""
        return Plan(tables, notes, None, back_by_hand=back)
    if running.elsewhere:
        notes.append(f"other machines reached port {seen.port}, and will not: carctl http enable --lan serves them")
    if seen.uid not in (running.uid, _ROOT) or (running.system and seen.uid != _ROOT):
        return Plan(tables, notes, None, by_hand=_by_hand(running, seen.unit))
    return Plan(tables, notes, _way(running, seen.switch, enabled=seen.enabled))


def _added(seen: Snapshot, tables: dict[str, dict[str, object]]) -> Iterator[str]:
    """Fill the tables of the models; yield a line for each change and each model that stays."""
    taken = {_GUIDE, *seen.configured}
    taken |= {alias for table in seen.configured.values() for alias in table.get("aliases", [])}
    names = {each.name for each in seen.candidates}
    for each in seen.candidates:
        why = each.why_not
        if not why and each.name in taken:
            there = seen.configured.get(each.name, {})
            if there.get("path") == each.table["path"]:
                continue
            why = "card.toml has another model of this name"
        if why:
            yield f"{each.name} stays: {why}"
            continue
        aliases = [alias for alias in dict.fromkeys(each.aliases) if alias not in taken | names]
        tables[each.name] = {**each.table, **({"aliases": aliases} if aliases else {})}
        taken |= {each.name, *aliases}
        yield from (f"{each.name}: {note}" for note in each.notes)


def _by_hand(running: Listening, installed: str) -> str:
    unit = running.unit or installed
    if unit:
        return f"sudo systemctl disable --now {unit}"
    return f"sudo kill {running.pid}" if running.pid else "sudo kill its process"


def _way(running: Listening, switch: tuple[str, ...], *, enabled: bool) -> ServerCommands:
    if running.unit:
        systemctl = ("systemctl",) if running.system else ("systemctl", "--user")
        stop, start = (["disable", "--now"], ["enable", "--now"]) if enabled else (["stop"], ["start"])
        return ServerCommands((*systemctl, *stop, running.unit), (*systemctl, *start, running.unit))
    if switch:
        return ServerCommands((*switch, "stop"), (*switch, "start"))
    return ServerCommands((), running.arguments)
