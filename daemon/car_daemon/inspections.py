"""`models/show`: model files are looked into one after the other, beside the event loop."""

import asyncio
from collections.abc import Callable

import structlog
from msgspec import Struct

from car_daemon.connection import Connection
from car_daemon.dispatch import Handler
from car_daemon.exchange import Exchange, Work
from car_daemon.models.entry import ModelEntry, ModelSettings
from car_daemon.models.inspection import Inspected, estimated, inspect, settings_of
from car_daemon.models.pool import ModelPool
from car_daemon.models.unsound import UnsoundModel
from car_protocol.errors import RpcError
from car_protocol.models import Model, ModelDetails, ShowParams

log = structlog.get_logger()


class _Asked(Struct, eq=False):
    """One who asked."""

    exchange: Exchange
    entry: ModelEntry


class Inspections:
    """`describe` gives a model's entry, `free_for` the memory that it may use, `look` what is in its files."""

    def __init__(
        self,
        pool: ModelPool,
        *,
        describe: Callable[[ModelEntry], Model],
        free_for: Callable[[ModelEntry], int],
        look: Callable[[ModelSettings], Inspected] = inspect,
    ) -> None:
        self._pool = pool
        self._describe = describe
        self._free_for = free_for
        self._look = look
        # Mutable state: who waits, and the task that looks.
        self._waiting: list[_Asked] = []
        self._task: asyncio.Task[None] | None = None

    def table(self) -> dict[str, Handler]:
        """Return the handler of the method."""
        return {"models/show": self.show}

    def show(self, _connection: Connection, exchange: Exchange, params: ShowParams) -> None:
        """Have a model's files looked into; the answer comes when that is done."""
        asked = _Asked(exchange, self._pool.named(params.model))
        exchange.work = Work(lambda reason: self._cancel(asked, reason))
        self._waiting.append(asked)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer_all(), name="inspections")

    def refuse_all(self, reason: str) -> None:
        """Answer everybody who waits with an error."""
        while self._waiting:
            self._waiting.pop().exchange.error(RpcError(reason))

    def _cancel(self, asked: _Asked, reason: str) -> None:
        if asked in self._waiting:
            self._waiting.remove(asked)
            asked.exchange.error(RpcError(reason))

    async def _answer_all(self) -> None:
        while self._waiting:
            # Who is looked for stays in the list, so that it can be cancelled and refused meanwhile.
            asked = self._waiting[0]
            answer = await self._details(asked.entry)
            if asked not in self._waiting:
                continue
            self._waiting.remove(asked)
            if isinstance(answer, RpcError):
                asked.exchange.error(answer)
            else:
                asked.exchange.result(answer)

    async def _details(self, entry: ModelEntry) -> ModelDetails | RpcError:
        try:
            inspected = await asyncio.to_thread(self._look, settings_of(entry))
            estimate = estimated(entry, inspected, self._free_for(entry))
            return ModelDetails(model=self._describe(entry), file=inspected.file, estimate=estimate)
        except UnsoundModel as unsound:
            return ModelDetails(model=self._describe(entry), why=str(unsound))
        except Exception as error:  # noqa: BLE001 - a file that cannot be looked into must not end the looking
            log.error("model.not_inspected", model=entry.name, error=type(error).__name__)  # noqa: TRY400
            return RpcError("internal_error")
