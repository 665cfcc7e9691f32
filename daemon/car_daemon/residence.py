"""`models/load` and `models/unload`: who asked, and what they hear when it is done."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from car_daemon.connection import Connection
from car_daemon.dispatch import Handler
from car_daemon.exchange import Exchange, Work
from car_daemon.models.entry import ModelEntry
from car_daemon.models.keeper import ModelKeeper
from car_daemon.models.pool import ModelPool
from car_daemon.peer import Peer
from car_protocol.errors import RpcError
from car_protocol.methods import MODELS_PROGRESS
from car_protocol.models import LoadParams, LoadProgress, Model


class _Waiter(Struct, eq=False):
    """One who waits for a model to be served, or to be gone; `begun` once a load began that may be the one."""

    connection: Connection
    exchange: Exchange
    entry: ModelEntry
    progress: bool
    begun: bool


class Residence:
    """`permit` raises RpcError for a peer that may not, `describe` gives the result."""

    def __init__(
        self,
        pool: ModelPool,
        keeper: Callable[[], ModelKeeper],
        *,
        describe: Callable[[ModelEntry], Model],
        permit: Callable[[Peer], None],
        draining: Callable[[], bool],
    ) -> None:
        self._pool = pool
        self._keeper = keeper
        self._describe = describe
        self._permit = permit
        self._draining = draining
        # Mutable state: who waits.
        self._loads: list[_Waiter] = []
        self._unloads: list[_Waiter] = []

    def table(self) -> dict[str, Handler]:
        """Return the handler of both methods."""
        return {"models/load": self.load, "models/unload": self.unload}

    def load(self, connection: Connection, exchange: Exchange, params: LoadParams) -> Model | None:
        """Have a model loaded; the answer comes when it is served or cannot be."""
        self._admit(connection)
        entry = self._pool.servable(params.model)
        if entry.state == "ready":
            return self._describe(entry)
        self._wait(self._loads, connection, exchange, entry, params)
        self._keeper().load(entry)
        return None

    def unload(self, connection: Connection, exchange: Exchange, params: LoadParams) -> Model | None:
        """Have a model finish its work and go; the answer comes when it is gone."""
        self._admit(connection)
        entry = self._pool.named(params.model)
        if entry.state == "unloaded":
            return self._describe(entry)
        self._wait(self._unloads, connection, exchange, entry, params)
        self._keeper().unload(entry)
        return None

    def wanted(self, entry: ModelEntry) -> bool:
        """Tell whether somebody waits for a model to be loaded."""
        return any(load.entry is entry for load in self._loads)

    def changed(self, entry: ModelEntry) -> None:
        """Answer those for whom this state of a model is the end."""
        for load in [load for load in self._loads if load.entry is entry]:
            self._look_at_load(load)
        if entry.state in ("unloaded", "failed"):
            for unload in [unload for unload in self._unloads if unload.entry is entry]:
                self._unloads.remove(unload)
                unload.exchange.result(self._describe(entry))

    def advanced(self, entry: ModelEntry) -> None:
        """Tell those who asked how much of a model is loaded."""
        total = entry.size_bytes or 0
        for load in self._loads:
            if load.entry is entry and load.progress:
                done = round(entry.progress * total)
                load.connection.notify(MODELS_PROGRESS, LoadProgress(load.exchange.id, entry.name, done, total))

    def refuse_all(self, reason: str) -> None:
        """Answer everybody who waits with an error."""
        for waiting in [*self._loads, *self._unloads]:
            waiting.exchange.error(RpcError(reason))
        self._loads.clear()
        self._unloads.clear()

    def _admit(self, connection: Connection) -> None:
        self._permit(connection.peer)
        if self._draining():
            raise RpcError("draining")

    def _wait(
        self,
        waiters: list[_Waiter],
        connection: Connection,
        exchange: Exchange,
        entry: ModelEntry,
        params: LoadParams,
    ) -> None:
        waiter = _Waiter(connection, exchange, entry, params.progress, entry.state == "loading")

        def cancel(reason: str) -> None:
            if waiter in waiters:
                waiters.remove(waiter)
                exchange.error(RpcError(reason))
                self._keeper().changed(entry)

        waiters.append(waiter)
        exchange.work = Work(cancel)

    def _look_at_load(self, load: _Waiter) -> None:
        entry = load.entry
        if entry.state == "ready":
            self._loads.remove(load)
            # The gate hears of an engine after its entry: describe it once both know.
            asyncio.get_running_loop().call_soon(lambda: load.exchange.result(self._describe(entry)))
        elif entry.state == "failed" or (entry.state == "unloaded" and load.begun):
            self._loads.remove(load)
            data: dict[str, Any] = {"why": entry.reason or "unloaded", **entry.shortage}
            load.exchange.error(RpcError("model_unavailable", **data))
        load.begun = load.begun or entry.state == "loading"
