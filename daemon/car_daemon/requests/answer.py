"""Contracts of every request that needs a lease: its origin, its responder and its pending answer."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from car_base.ipc import frames
from car_daemon.people.identity import Identity
from car_daemon.scheduler.request import EngineFailure, Prompt, Request
from car_protocol.answer import Progress
from car_protocol.envelope import Id
from car_protocol.errors import RpcError
from car_protocol.meta import Trace


class Responder(Protocol):
    """Receiver of an answer; exactly one of `result` and `error` is called, once."""

    @property
    def chunks(self) -> int:
        """Chunks that the client gets of the pieces sent so far; several pieces may be merged into one."""
        ...

    def chunk(self, text: str, extra: frames.Extra | None, index: int | None = None) -> None:
        """Send one piece of a stream; `index` is the answer's if there are several."""
        ...

    def progress(self, params: Progress) -> None:
        """Send the request's progress."""
        ...

    def result(self, result: Struct) -> None:
        """Send the terminal response."""
        ...

    def error(self, error: RpcError) -> None:
        """Send the terminal error."""
        ...


class CallOrigin(Struct, frozen=True):
    """Origin of a request: whose it is, process, connection and tenant, the client's own id and label, the trace.

    Requests of a `background` origin are of class `throughput`.
    """

    identity: Identity
    pid: int
    connection: int
    id: Id
    client: str | None
    trace: Trace | None
    tenant: str = ""
    background: bool = False

    @property
    def names(self) -> frames.Names:
        """Its process, tenant and label, by which the jobs of a user take turns."""
        return str(self.pid), self.tenant, self.client or ""


class Siblings(Struct, eq=False):
    """The requests for the answers to one prompt, one in most cases.

    An engine prepares the prompt once for all answers, and an error of one ends the others.
    """

    keys: Sequence[int]
    # By the engine that was sent the prompt: that frame, then its reply.
    forms: dict[int, frames.Prepare | frames.PrepareDecision | frames.PrepareTexts | frames.Prepared] = {}
    failed: bool = False


class PendingAnswer(Protocol):
    """A request and its answer in the making, until the terminal response or error."""

    request: Request
    origin: CallOrigin
    sequence: int | None  # in its engine, once a step advanced it
    prompt_tokens: int  # 0 until it is prepared
    decisions: int  # 1 for an answer of `decide`
    texts: int  # that are embedded or ranked
    siblings: Siblings

    @property
    def begun(self) -> bool:
        """Whether it has a token."""
        ...

    def failure(self, context_tokens: int) -> EngineFailure | None:
        """Return the error that its engine, whose sequences have this context, ended it with."""
        ...

    def as_prepare(self) -> frames.Prepare | frames.PrepareDecision | frames.PrepareTexts:
        """Return the frame that prepares the request."""
        ...

    def prepared(self, message: frames.Prepared, *, routed: bool) -> Prompt:
        """Keep the prepared form, so that an engine's death costs a waiting request nothing; return its figures.

        A prompt that is `routed` has the hashes by which a router finds its cells.
        """
        ...

    def as_run(self) -> frames.ToEngine:
        """Return the frame that runs the request from its beginning."""
        ...

    def add(self, update: frames.RequestUpdate) -> None:
        """Add the output of one step."""
        ...

    def queued(self, position: int, eta_ms: int | None) -> None:
        """Send the request's position in the queue."""
        ...

    def complete(self) -> None:
        """Send the terminal response."""
        ...

    def fail(self, reason: str, data: dict[str, object]) -> None:
        """Send the terminal error."""
        ...
