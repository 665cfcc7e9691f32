"""Methods about models: list, load, unload and show."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain
from typing import Any

from msgspec import Struct

from car_base.host.event_log import log
from car_daemon.connections.call import CallWork, RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.gguf.invalid import InvalidModel
from car_daemon.methods.dispatch import Handler
from car_daemon.methods.model_report import devices_of, host_experts_of
from car_daemon.models.entry import ModelEntry, ModelPool
from car_daemon.models.inspection import Abilities, Inspected, estimated, inspect, settings_of
from car_daemon.models.manager import ModelManager
from car_daemon.models.settings import ModelSettings
from car_daemon.people.identity import Identity
from car_protocol.errors import RpcError
from car_protocol.infer import NoParams
from car_protocol.methods import MODELS_PROGRESS
from car_protocol.models import LoadParams, LoadProgress, Model, ModelDetails, Models, ShowParams


class _Waiter(Struct, eq=False):
    """A call that waits for a model to be loaded or unloaded."""

    connection: Connection
    call: RpcCall
    entry: ModelEntry
    progress: bool
    begun: bool  # a load began since the call came, so that `unloaded` means it was given up


class ModelMethods:
    """Handlers of `models/load` and `models/unload`, with the calls that wait.

    `describe` returns a model object for a caller; `permit` raises RpcError `not_permitted` for a caller without the
    right.
    """

    def __init__(
        self,
        pool: ModelPool,
        manager: Callable[[], ModelManager],
        *,
        describe: Callable[[ModelEntry, Identity], Model],
        permit: Callable[[Identity], None],
        draining: Callable[[], bool],
    ) -> None:
        self._pool = pool
        self._manager = manager
        self._describe = describe
        self._permit = permit
        self._draining = draining
        self._loads: list[_Waiter] = []
        self._unloads: list[_Waiter] = []

    def __repr__(self) -> str:
        return f"<ModelMethods {len(self._loads)} loads, {len(self._unloads)} unloads>"

    def table(self) -> dict[str, Handler]:
        """Return the handlers by method."""
        return {"models/load": self.load, "models/unload": self.unload}

    def load(self, connection: Connection, call: RpcCall, params: LoadParams) -> Model | None:
        """Load a model; the answer comes once it is served or cannot be."""
        self._admit(connection)
        entry = self._pool.servable(params.model)
        if entry.state == "ready":
            return self._describe(entry, connection.identity)
        self._wait(self._loads, connection, call, entry, params)
        self._manager().load(entry)
        return None

    def unload(self, connection: Connection, call: RpcCall, params: LoadParams) -> Model | None:
        """Let a model finish its work and unload it; the answer comes once it is gone."""
        self._admit(connection)
        entry = self._pool.named(params.model)
        if entry.state == "unloaded":
            return self._describe(entry, connection.identity)
        self._wait(self._unloads, connection, call, entry, params)
        self._manager().unload(entry)
        return None

    def is_awaited(self, entry: ModelEntry) -> bool:
        """Return whether a call waits for a model to be loaded."""
        return any(load.entry is entry for load in self._loads)

    def changed(self, entry: ModelEntry) -> None:
        """Answer the calls that a model's new state ends."""

        def answer(waiter: _Waiter) -> None:
            waiter.call.result(self._describe(entry, waiter.connection.user))

        for load in [load for load in self._loads if load.entry is entry]:
            if entry.state == "ready":
                self._loads.remove(load)
                # The gate counts an engine after its entry is ready: describe the model once both agree.
                asyncio.get_running_loop().call_soon(answer, load)
            elif entry.state == "failed" or (entry.state == "unloaded" and load.begun):
                self._loads.remove(load)
                data: dict[str, Any] = {"why": entry.reason or "unloaded", **entry.shortage}
                load.call.error(RpcError("model_unavailable", **data))
            load.begun = load.begun or entry.state == "loading"
        if entry.state in ("unloaded", "failed"):
            for unload in [unload for unload in self._unloads if unload.entry is entry]:
                self._unloads.remove(unload)
                answer(unload)

    def advanced(self, entry: ModelEntry) -> None:
        """Notify the calls that follow a load of its progress in bytes."""
        total = entry.size_bytes or 0
        for load in self._loads:
            if load.entry is entry and load.progress:
                done = round(entry.replicas.progress * total)
                load.connection.notify(MODELS_PROGRESS, LoadProgress(load.call.id, entry.name, done, total))

    def refuse_all(self, reason: str) -> None:
        """Answer all waiting calls with an error."""
        for waiter in [*self._loads, *self._unloads]:
            waiter.call.error(RpcError(reason))
        self._loads.clear()
        self._unloads.clear()

    def _admit(self, connection: Connection) -> None:
        self._permit(connection.identity)
        if self._draining():
            raise RpcError("draining")

    def _wait(
        self, waiters: list[_Waiter], connection: Connection, call: RpcCall, entry: ModelEntry, params: LoadParams
    ) -> None:
        waiter = _Waiter(connection, call, entry, params.progress, entry.state == "loading")

        def cancel(reason: str) -> None:
            if waiter in waiters:
                waiters.remove(waiter)
                call.error(RpcError(reason))
                self._manager().changed(entry)

        waiters.append(waiter)
        call.work = CallWork(cancel)


class _Inspection(Struct, eq=False):
    """A user's call that waits for files of models to be read, and the reading that answers it."""

    uid: int
    call: RpcCall
    model: str | None  # None: all of them
    read: Callable[[], Awaitable[Struct]]


class Inspections:
    """Handlers of `models/list` and `models/show`: model files are read in a thread, for each user in turn.

    `describe` returns a model object for a caller, `free_for` the bytes that a model may use; `look` reads its files.
    """

    def __init__(
        self,
        pool: ModelPool,
        *,
        describe: Callable[[ModelEntry, Identity], Model],
        free_for: Callable[[ModelEntry], int],
        abilities: Abilities,
        look: Callable[[ModelSettings], Inspected] = inspect,
    ) -> None:
        self._pool = pool
        self._describe = describe
        self._free_for = free_for
        self._abilities = abilities
        self._look = look
        self._waiting: dict[int, list[_Inspection]] = {}  # by user, the next one's first
        self._reading: _Inspection | None = None  # None once it was cancelled or refused
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Inspections {sum(map(len, self._waiting.values()))} waiting>"

    def table(self) -> dict[str, Handler]:
        """Return the handlers by method."""
        return {"models/list": self.list_models, "models/show": self.show}

    def list_models(self, connection: Connection, call: RpcCall, _params: NoParams) -> Models | None:
        """List the models, at once unless headers of models that are not loaded have to be read."""
        caller = connection.identity
        if not self._abilities.unread(self._pool):
            return self._listed(caller)

        async def read() -> Models:
            await self._abilities.look(self._pool)
            return self._listed(caller)

        self._enqueue(_Inspection(caller.number, call, None, read))
        return None

    def show(self, connection: Connection, call: RpcCall, params: ShowParams) -> None:
        """Read a model's files; the answer comes afterwards."""
        entry, caller = self._pool.named(params.model), connection.identity

        async def read() -> ModelDetails:
            await self._abilities.look([entry])
            try:
                inspected = await asyncio.to_thread(self._look, settings_of(entry))
            except InvalidModel as invalid:
                return ModelDetails(model=self._describe(entry, caller), why=str(invalid))
            estimate = estimated(entry, inspected, self._free_for(entry))
            return ModelDetails(
                model=self._describe(entry, caller),
                file=inspected.file,
                estimate=estimate,
                devices=[each for replica in entry.replicas for each in devices_of(replica)] or None,
                host_experts=host_experts_of(entry.replicas) or None,
            )

        self._enqueue(_Inspection(caller.number, call, entry.name, read))

    def refuse_all(self, reason: str) -> None:
        """Answer all waiting calls with an error."""
        for inspection in [*([] if self._reading is None else [self._reading]), *chain(*self._waiting.values())]:
            inspection.call.error(RpcError(reason))
        self._waiting.clear()
        self._reading = None

    def _listed(self, caller: Identity) -> Models:
        return Models([self._describe(each, caller) for each in self._pool if self._pool.is_configured(each)])

    def _enqueue(self, inspection: _Inspection) -> None:
        self._waiting.setdefault(inspection.uid, []).append(inspection)
        inspection.call.work = CallWork(partial(self._cancel, inspection))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer_all(), name="inspections")

    def _cancel(self, inspection: _Inspection, reason: str) -> None:
        own = self._waiting.get(inspection.uid, [])
        if inspection is self._reading:
            self._reading = None
        elif inspection in own:
            own.remove(inspection)
            if not own:
                del self._waiting[inspection.uid]
        else:
            return
        inspection.call.error(RpcError(reason))

    def _next(self) -> _Inspection:
        """Remove and return the first call of the user whose turn it is; its next one comes after other users'."""
        uid = next(iter(self._waiting))
        own = self._waiting.pop(uid)
        first = own.pop(0)
        if own:
            self._waiting[uid] = own
        return first

    async def _answer_all(self) -> None:
        while self._waiting:
            self._reading = inspection = self._next()
            result: Struct | None = None
            try:
                result = await inspection.read()
            except Exception as error:  # noqa: BLE001 - a file that cannot be read must not end the other inspections
                log.error("model.not_inspected", model=inspection.model, error=type(error).__name__)
            if self._reading is None:
                continue
            self._reading = None
            if result is None:
                inspection.call.error(RpcError("internal_error"))
            else:
                inspection.call.result(result)
