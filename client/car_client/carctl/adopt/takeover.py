"""An adoption carried out step by step, and undone from wherever it came to."""

import os
import signal
import socket
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from car_client.carctl.admin import reload_config
from car_client.carctl.adopt.doors import PortDoor
from car_client.carctl.adopt.journal import Adoption, Journal
from car_client.carctl.adopt.listening import listening, owed
from car_client.carctl.adopt.plan import ServerCommands
from car_client.carctl.adopt.servers import OtherServer, busy_slots, is_answered_by, proof
from car_client.carctl.config.card_toml import CardToml, config_path
from car_client.carctl.service.steps import Steps
from car_client.carctl.service.up import up
from car_client.client import Client
from car_client.errors import CardError, DaemonUnavailable, RequestError

# A promise: answers that the other server gives have a minute to end before it is stopped.
QUIET_S = 60.0
# How long a program may take to leave a port, or to answer on it: that of a service manager's usual patience.
_TURN_S = 30.0
_LOOK_S = 0.1


class NotAdopted(CardError):
    """The port is the other server's as before."""


class Takeover(Struct, frozen=True):
    """The tools of an adoption."""

    client: Client
    server: OtherServer
    journal: Journal
    door: PortDoor
    steps: Steps
    socket: str | None  # of the daemon, None for the usual one

    def adopt(
        self, adoption: Adoption, tables: Mapping[str, Mapping[str, object]], *, pid: int | None, now: bool
    ) -> str:
        """Take over the port; return the proof. Raises CardError once all is as before."""
        try:
            self._configure(adoption, tables)
            if adoption.way is not None:
                self._stop(adoption, pid, now=now)
            _wait_until(lambda: is_free(adoption.port), f"port {adoption.port} is taken by a program that starts anew")
            if now and pid is not None:
                # llama-server holds the connections of the answers that it cut until a second signal.
                _end(pid)
            adoption.door = self.door.start(adoption.port)
            self.journal.write(adoption)
            _wait_until(lambda: self._door_answers(adoption), "the door does not answer")
            return self._proved(adoption)
        except (CardError, OSError, ValueError, KeyboardInterrupt) as error:
            self.undo(adoption)
            raise NotAdopted(f"{error or 'interrupted'}; all is as before") from error

    def undo(self, adoption: Adoption) -> None:
        """Give the port back, first of all, and restore card.toml once the last accepted answer is out."""
        if adoption.door is not None and self.door.end(adoption.door):
            _wait_until(lambda: is_free(adoption.port), f"card does not leave port {adoption.port}")
        if adoption.stopped:
            self._start(adoption)
        if adoption.door is not None:
            self.door.wait(adoption.door)
        self._restore(adoption)
        self.journal.remove()

    def _configure(self, adoption: Adoption, tables: Mapping[str, Mapping[str, object]]) -> None:
        """Add the tables to card.toml, without models that the daemon cannot serve, and have it read the file."""
        with CardToml(config_path()) as config:
            adoption.before = config.text if config.path.exists() else None
            for name, table in tables.items():
                config.add_model(name, table)
            if len(tables) == 1 and config.default_model is None:
                config.use_model(*tables)  # the other server answered with it if a request named no model
            adoption.models, adoption.after = list(tables), config.text
            self.journal.write(adoption)
            config.save()
            self._read_config()
            unfit = {name: why for name in tables if (why := self._why_unfit(name)) is not None}
            if unfit:
                config.remove_models(unfit)
                adoption.models, adoption.after = [name for name in tables if name not in unfit], config.text
                self.journal.write(adoption)
                config.save()
                self._read_config()
        for name, why in unfit.items():
            print(f"{name} stays: {why}")
        if tables and len(unfit) == len(tables):
            raise NotAdopted("card can serve none of the models")

    def _read_config(self) -> None:
        try:
            reload_config(self.client)
        except DaemonUnavailable:
            up(self.client, Namespace(socket=self.socket, model=None, system=False))

    def _why_unfit(self, name: str) -> str | None:
        try:
            why: str | None = self.client.call("models/show", {"model": name}).get("why")
        except RequestError as error:
            raise NotAdopted(f"the daemon does not read {config_path()}: start it without --config") from error
        return why

    def _stop(self, adoption: Adoption, pid: int | None, *, now: bool) -> None:
        assert adoption.way is not None
        if not now:
            self._wait_until_quiet(adoption.port)
        adoption.stopped = True
        self.journal.write(adoption)
        if adoption.way.stop:
            self.steps.run(*adoption.way.stop)
        elif pid is not None:
            print(f"end process {pid}: {' '.join(adoption.way.start[:3])}")
            _end(pid)

    def _wait_until_quiet(self, port: int) -> None:
        """Wait while the other server owes answers, because its end cuts them; raises NotAdopted."""
        title, count = self.server.title, self._owed(port)
        if count is None:
            print(f"this system does not show what {title} still answers: its end cuts that")
        elif count:
            print(f"{title} still answers {count} requests: waiting for their end", flush=True)
            busy = (
                f"{title} still answers requests after {QUIET_S:.0f} s: run this later, or with --now, which cuts them"
            )
            _wait_until(lambda: not self._owed(port), busy, QUIET_S)

    def _owed(self, port: int) -> int | None:
        count = owed(port)
        return None if count is None else max(count, busy_slots(self.server, port))

    def _start(self, adoption: Adoption) -> None:
        """Start the other server again and wait for it; print how, if it does not answer."""
        way = adoption.way
        if way is None or not is_free(adoption.port):
            return
        try:
            self._run(way, adoption)
            _wait_until(lambda: is_answered_by(self.server, adoption.port), "it does not answer")
        except (CardError, OSError) as error:
            print(f"start {self.server.title} by hand ({error}): {' '.join(way.start)}")

    def _run(self, way: ServerCommands, adoption: Adoption) -> None:
        if way.stop:
            self.steps.run(*way.start)
        else:
            print(f"run {' '.join(way.start)}")
            # The command line of the process that was stopped, of this user's own, runs again without a shell.
            subprocess.Popen(  # noqa: S603
                way.start,
                cwd=adoption.folder,
                env={**os.environ, **adoption.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _restore(self, adoption: Adoption) -> None:
        """Write card.toml as it was; changes of the time between stay."""
        if not adoption.models:
            return
        with CardToml(config_path()) as config:
            if config.text != adoption.after:
                config.remove_models(adoption.models)
            if config.text == adoption.after or (adoption.before is None and not config.text.strip()):
                config.go_back(adoption.before)
            else:
                config.save()
        with suppress(DaemonUnavailable):
            reload_config(self.client)

    def _door_answers(self, adoption: Adoption) -> bool:
        if is_answered_by(self.server, adoption.port):
            return True
        if adoption.door is None or not self.door.runs(adoption.door):
            raise NotAdopted("the door ended at its start: its log has the reason")
        return False

    def _proved(self, adoption: Adoption) -> str:
        served: list[dict[str, Any]] = self.client.call("models/list")["models"]
        chats = [each for each in served if each["name"] in adoption.models and "chat" in each["can"]]
        least = min(chats, key=lambda each: each["size_bytes"] or 0, default=None)
        return proof(self.server, adoption.port, None if least is None else least["name"])


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def is_free(port: int) -> bool:
    """Return whether a program may listen on a loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return listening(port, ()) is None


def _wait_until(condition: Callable[[], bool], otherwise: str, seconds: float = _TURN_S) -> None:
    """Wait for the system; raises NotAdopted after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise NotAdopted(otherwise)
        time.sleep(_LOOK_S)
