"""Images encoded before their requests have a lease, so that no sequence waits for the projector.

Requests that are not prepared yet need no sequence: while their images are encoded, all sequences serve others.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from car_base.ipc.frames import FromEngine, Prepare, Prepared, PrepareDecision
from car_base.ipc.turns import Path
from car_engine.images.encoder import Encode, Encoded
from car_protocol.infer import Priority

AHEAD_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EncodeAhead:
    """A request with images whose prompt is prepared; its daemon is sent `prepared` once they are encoded."""

    prepare: Prepare | PrepareDecision
    prepared: Prepared

    @property
    def key(self) -> int:
        """The request's key."""
        return self.prepared.key


@dataclass(slots=True)
class _Ahead:
    """A request from the begin of its encoding to its lease."""

    prepared: Prepared
    share: tuple[int, Priority]  # its user and class
    size: int  # bytes of its rows
    job: Encode | None = None  # None until the encoder has it
    rows: Encoded | None = None  # None until it is encoded

    @property
    def parts(self) -> list[Path]:
        """Its user, process, tenant and label."""
        path = self.prepared.owner, *self.prepared.names
        return [path[:depth] for depth in range(1, len(path) + 1)]


class RowsAhead:
    """Requests whose images are encoded before their lease.

    The user with the fewest requests so far goes first, then its process, tenant and label with the fewest. The rows
    take at most `limit` bytes, and one request more of each user and class: a user whose rows fill the memory, or batch
    work that waits long for its lease, delays no images of others.
    """

    def __init__(
        self,
        encode: Callable[[Encode], None],
        send: Callable[[FromEngine], None],
        row_bytes: int,
        limit: int = AHEAD_BYTES,
    ) -> None:
        self._encode = encode
        self._send = send
        self._row_bytes = row_bytes
        self._limit = limit
        self._requests: dict[int, _Ahead] = {}  # by key, in order of arrival

    def __repr__(self) -> str:
        begun = [each for each in self._requests.values() if each.job is not None]
        size = sum(each.size for each in begun)
        return f"<RowsAhead requests={len(self._requests)} begun={len(begun)} bytes={size}>"

    def add(self, ahead: EncodeAhead, *, cached: bool) -> None:
        """Have a request's images encoded; `cached` are images whose cells are at hand, and need no rows."""
        prepared, prepare = ahead.prepared, ahead.prepare
        if cached:
            self._send(prepared)
            return
        size = sum(image.count for image in prepared.images) * self._row_bytes
        self._requests[ahead.key] = _Ahead(prepared, (prepared.owner, prepare.params.priority), size)
        self._begin()

    def deliver(self, encoded: Encoded) -> None:
        """Keep the rows of a request, or the fault, which now waits for its lease."""
        request = self._requests.get(encoded.key)
        if request is not None and request.rows is None:
            request.rows = encoded
            self._send(request.prepared)

    def take(self, key: int) -> Encoded | None:
        """Remove a request that has a lease or is forgotten; return its rows, None if it has none."""
        request = self._requests.pop(key, None)
        if request is None:
            return None
        if request.job is not None and request.rows is None:
            request.job.wanted = False
        self._begin()
        return request.rows

    def _begin(self) -> None:
        """Have images encoded as far as there is memory for their rows."""
        begun = [each for each in self._requests.values() if each.job is not None]
        taken, shares = sum(each.size for each in begun), {each.share for each in begun}
        served = Counter(part for each in begun for part in each.parts)
        waiting = [each for each in self._requests.values() if each.job is None]
        while fitting := [each for each in waiting if each.share not in shares or taken + each.size <= self._limit]:
            request = min(fitting, key=lambda each: [served[part] for part in each.parts])
            waiting.remove(request)
            prepared = request.prepared
            request.job = Encode(prepared.key, prepared.owner, prepared.images, prepared.names)
            taken += request.size
            shares.add(request.share)
            served.update(request.parts)
            self._encode(request.job)
