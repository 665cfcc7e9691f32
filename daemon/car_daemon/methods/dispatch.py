"""Calls to handlers, by the table of methods."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from car_base.host import defects
from car_daemon.connections.call import RpcCall
from car_daemon.people.identity import Identity
from car_daemon.people.people import People
from car_daemon.telemetry.logs import trace_facts
from car_protocol.envelope import Call
from car_protocol.errors import RpcError
from car_protocol.infer import InferParams
from car_protocol.meta import trace_of
from car_protocol.methods import METHODS
from car_protocol.params import decode_params

if TYPE_CHECKING:
    from car_daemon.connections.connection import Connection

# A handler returns the result, or None if it ends the call later.
Handler = Callable[["Connection", RpcCall, Any], Struct | dict[str, Any] | None]


class Dispatch:
    """Decodes params by the method table and calls the method's handler; errors become answers here.

    A call is of the connection's user, or of the person of `people` that a delegate names. `count_refused` is called
    with the identity for inference that was refused before the scheduler received it. `superseded` returns how many
    requests a request ends.
    """

    def __init__(
        self,
        handlers: dict[str, Handler],
        people: People,
        count_refused: Callable[[Identity], None],
        superseded: Callable[["Connection", RpcCall, InferParams], int],
    ) -> None:
        if handlers.keys() != METHODS.keys():
            raise ValueError(f"handlers and methods differ: {sorted(handlers.keys() ^ METHODS.keys())}")
        self._handlers = handlers
        self._people = people
        self._count_refused = count_refused
        self._superseded = superseded

    def call(self, connection: "Connection", request: Call, call: RpcCall) -> None:
        """Carry out a request; `call` is ended now or later."""
        method = METHODS.get(request.method)
        if method is None:
            call.error(RpcError("method_not_found"))
            return
        try:
            params = decode_params(method.params, request.params)
            if params.meta:
                call.trace = trace_of(params.meta)
            identity = connection.user
            if params.person is not None:
                identity = self._people.identity(identity.uid, params.person)
            call.identity = identity
            if identity != connection.identity:
                connection.speak_as(identity)
            if params.person is not None and method.infers:
                answers, ended = 1, 0
                if isinstance(params, InferParams):
                    answers, ended = params.n, self._superseded(connection, call, params)
                self._people.begin(params.person, answers, ended)
                call.background = self._people.is_background(params.person)
                call.on_end = partial(self._people.end, params.person, answers)
            result = self._handlers[request.method](connection, call, params)
            if result is not None:
                call.result(result)
        except RpcError as error:
            self._refused(request, call.identity or connection.user)
            call.error(error)
        except Exception as error:  # noqa: BLE001 - one failed call must not end the daemon
            # The text of an exception and its traceback may contain input, so that only its place is logged.
            defects.report("call.failed", error, method=request.method, **trace_facts(call.trace))
            call.error(RpcError("internal_error"))

    def refused(self, connection: "Connection", request: Call) -> None:
        """Count a request that was refused before its params were read."""
        self._refused(request, connection.user)

    def _refused(self, request: Call, identity: Identity) -> None:
        method = METHODS.get(request.method)
        if method is not None and method.infers:
            self._count_refused(identity)
