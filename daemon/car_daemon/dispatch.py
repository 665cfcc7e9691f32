"""Calls to handlers, by the table of methods."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from car_daemon import faults
from car_daemon.exchange import Exchange
from car_daemon.logs import trace_facts
from car_protocol.envelope import Call
from car_protocol.errors import RpcError
from car_protocol.infer import CancelParams
from car_protocol.methods import METHODS
from car_protocol.params import decode_params
from car_protocol.trace import trace_of

if TYPE_CHECKING:
    from car_daemon.connection import Connection

# A handler returns the result, or None where the exchange will be ended later.
Handler = Callable[["Connection", Exchange, Any], Struct | dict[str, Any] | None]
CANCEL = "$/cancelRequest"


class Dispatch:
    """Decodes params by the method table and calls the method's handler; errors become answers here.

    `count_refused` hears of inference that never became a request of the scheduler.
    """

    def __init__(self, handlers: dict[str, Handler], count_refused: Callable[[], None]) -> None:
        if handlers.keys() != METHODS.keys():
            raise ValueError(f"handlers and methods differ: {sorted(handlers.keys() ^ METHODS.keys())}")
        self._handlers = handlers
        self._count_refused = count_refused

    def call(self, connection: "Connection", call: Call, exchange: Exchange) -> None:
        """Carry out a request; the exchange is ended now or later."""
        try:
            result = self._handle(connection, call, exchange)
            if result is not None:
                exchange.result(result)
        except RpcError as error:
            self.refused(call)
            exchange.error(error)
        except Exception as error:  # noqa: BLE001 - one failed call must not end the daemon
            # The text of an exception may hold input, and so may a traceback.
            facts = trace_facts(exchange.trace)
            faults.report("call.failed", error, method=call.method, **facts)
            exchange.error(RpcError("internal_error"))

    def waits(self, call: Call) -> bool:
        """Return whether it may be answered later than at once."""
        method = METHODS.get(call.method)
        return method is not None and method.waits

    def refused(self, call: Call) -> None:
        """Count a request that was refused before the scheduler saw it."""
        method = METHODS.get(call.method)
        if method is not None and method.infers:
            self._count_refused()

    def notify(self, connection: "Connection", call: Call) -> None:
        """Carry out a notification: only a cancellation has an effect, and nothing is ever answered."""
        if call.method != CANCEL:
            return
        try:
            params = decode_params(CancelParams, call.params)
        except RpcError:
            return
        cancel_request(connection, params)

    def _handle(self, connection: "Connection", call: Call, exchange: Exchange) -> Struct | dict[str, Any] | None:
        method = METHODS.get(call.method)
        if method is None:
            raise RpcError("method_not_found")
        params = decode_params(method.params, call.params)
        exchange.trace = trace_of(params.meta)
        return self._handlers[call.method](connection, exchange, params)


def cancel_request(connection: "Connection", params: CancelParams) -> None:
    """Cancel a request of this connection; unknown and finished ids are ignored."""
    exchange = connection.in_flight.get(params.id)
    if exchange is not None:
        exchange.cancel("cancelled")
