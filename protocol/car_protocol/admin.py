"""Methods that change the daemon itself, or what other connections run."""

from typing import Annotated

from msgspec import Struct

from car_protocol.envelope import Id
from car_protocol.infer import Milliseconds
from car_protocol.meta import Params
from car_protocol.notes import note


class DrainParams(Params, frozen=True, kw_only=True):
    """The time that running and waiting requests have to finish; None is the configured timeout."""

    timeout_ms: Annotated[
        Milliseconds | None,
        note("five seconds less than `drain_timeout_s` where absent; of several the shortest counts"),
    ] = None


class Drained(Struct, frozen=True):
    """Requests that the daemon completed while it drained, and requests that it refused at the timeout."""

    completed: Annotated[int, note("requests that were answered while the daemon drained, not counting errors")]
    refused: Annotated[int, note("requests that got 1003 at the timeout")]


class CancelOtherParams(Params, frozen=True, kw_only=True):
    """The connection and the request to cancel, as the status names them."""

    connection: Annotated[int, note("its number in the status")]
    id: Annotated[Id, note("its id in the status; an unknown id is ignored")]
