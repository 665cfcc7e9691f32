"""Methods that change the daemon itself, or what other connections run."""

from msgspec import Struct

from car_protocol.envelope import Id
from car_protocol.infer import Milliseconds
from car_protocol.meta import Params


class DrainParams(Params, frozen=True, kw_only=True):
    """How long what runs and waits may take to finish; None is as long as the daemon was configured to wait."""

    timeout_ms: Milliseconds | None = None


class Drained(Struct, frozen=True):
    """Requests that were completed while the daemon drained, and those that it refused at the timeout."""

    completed: int
    refused: int


class CancelOtherParams(Params, frozen=True, kw_only=True):
    """Which request of which connection to cancel, as the status names them."""

    connection: int
    id: Id
