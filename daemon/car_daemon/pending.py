"""What every request that needs a lease has in common on its way to an answer."""

from typing import Protocol

from msgspec import Struct

from car_daemon.engine import frames
from car_daemon.scheduler.request import Failure, Request
from car_protocol.answer import Progress
from car_protocol.envelope import Id
from car_protocol.errors import RpcError
from car_protocol.trace import Trace


class Reply(Protocol):
    """Where an answer goes; exactly one of `result` and `error` is called, once."""

    @property
    def chunks(self) -> int:
        """How many pieces the client gets of what was sent so far: some may become one."""
        ...

    def chunk(self, text: str, extra: frames.Extra | None) -> None:
        """Send one piece of a stream."""
        ...

    def progress(self, params: Progress) -> None:
        """Send how far the request is."""
        ...

    def result(self, result: Struct) -> None:
        """Send the terminal response."""
        ...

    def error(self, error: RpcError) -> None:
        """Send the terminal error."""
        ...


class Owner(Struct, frozen=True):
    """Whose request it is: user, process, connection, the client's own id and label, and the trace it belongs to."""

    uid: int
    pid: int
    connection: int
    id: Id
    client: str | None
    trace: Trace | None


class Pending(Protocol):
    """A request and the answer that it is to get."""

    request: Request
    owner: Owner
    sequence: int | None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prepared prompt."""
        ...

    @property
    def namespace(self) -> str | None:
        """Whose cached cells may be used; None: nobody's."""
        ...

    @property
    def failure(self) -> Failure | None:
        """The error that the engine ended it with."""
        ...

    def as_prepare(self) -> frames.ToEngine:
        """Return the frame that has the request prepared."""
        ...

    def prepared(self, message: frames.Prepared) -> None:
        """Keep the prepared form."""
        ...

    def as_run(self) -> frames.ToEngine:
        """Return the frame that starts the request, from its beginning."""
        ...

    def take(self, row: frames.Row) -> None:
        """Take what one step brought."""
        ...

    def queued(self, position: int, eta_ms: int | None) -> None:
        """Tell the client where its request stands in the queue."""
        ...

    def complete(self) -> None:
        """Send the terminal response."""
        ...

    def fail(self, reason: str, data: dict[str, object]) -> None:
        """Send the terminal error."""
        ...
