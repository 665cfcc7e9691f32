"""The status as one user may see it: its lists of sequences and connections."""

from collections.abc import Callable, Iterable, Sized
from functools import cache
from typing import NamedTuple, Protocol

from msgspec import structs

from car_daemon.connections.connection import Connection
from car_daemon.host.ttl_cache import TtlCache
from car_daemon.methods.status_feed import Encode
from car_daemon.methods.status_report import StatusReport
from car_daemon.requests.answer import PendingAnswer
from car_protocol.envelope import Notification, encode_message
from car_protocol.methods import STATUS_CHANGED
from car_protocol.status import ConnectionStatus, MoreConnections, OtherUsers, SequenceStatus, Status

_ROOT = 0
_MOST_LISTED = 100  # connections


class Connections(Sized, Iterable[Connection], Protocol):
    """The open connections."""


class _Clients(NamedTuple):
    listed: list[ConnectionStatus]
    more: MoreConnections | None
    others: OtherUsers | None  # without sequences; None for administrators


class UserView:
    """Lists a user's own sequences and connections and counts those of others; the users `admins` are sent all.

    Where connections are too many to read every time, they are those of the last 200 ms.
    """

    def __init__(
        self,
        report: StatusReport,
        *,
        connections: Callable[[], Connections],
        admins: Callable[[], set[int]],
        clock: Callable[[], float],
    ) -> None:
        self._report = report
        self._connections = connections
        self._admins = admins
        self._clock = clock
        self._cached_clients = TtlCache(self._clients, clock)

    def status(self, uid: int) -> Status:
        """Return the status object for a user."""
        return self.of(uid, self._report.common(admin=uid in self._admins()))

    def encoder(self) -> Encode:
        """Return the function that encodes the notification for a user, at this moment."""
        admins, common = self._admins(), cache(self._report.common)
        return lambda uid: encode_message(Notification(STATUS_CHANGED, self.of(uid, common(admin=uid in admins))))

    def of(self, uid: int, common: Status) -> Status:
        """Return a status with the lists for a user: what is its own, for administrators all."""
        many = len(self._connections()) > _MOST_LISTED
        clients = (self._cached_clients if many else self._clients)(uid)
        running = self._report.running()
        sequences = running if clients.others is None else [each for each in running if each.origin.uid == uid]
        others = clients.others and structs.replace(clients.others, sequences=len(running) - len(sequences))
        return structs.replace(
            common,
            sequences=[self._sequence(answer, uid) for answer in sequences],
            connections=clients.listed,
            more_connections=clients.more,
            others=others,
        )

    def _clients(self, uid: int) -> "_Clients":
        everyone = list(self._connections())
        if uid in self._admins():
            return _Clients(*_busiest(everyone), None)
        own = [each for each in everyone if each.peer.uid == uid]
        in_flight = sum(len(each.requests) for each in everyone if each.peer.uid != uid)
        others = OtherUsers(connections=len(everyone) - len(own), in_flight=in_flight, sequences=0)
        return _Clients(*_busiest(own), others)

    def _sequence(self, answer: PendingAnswer, uid: int) -> SequenceStatus:
        request, origin = answer.request, answer.origin
        assert answer.sequence is not None
        return SequenceStatus(
            model=request.model,
            sequence=answer.sequence,
            phase="decode" if request.produced else "prefill",
            uid=origin.uid,
            connection=origin.connection,
            prompt_tokens=answer.prompt_tokens,
            done_tokens=request.produced or request.prompt_done,
            age_ms=round((self._clock() - request.spec.arrived) * 1000, 1),
            id=origin.id if uid in (_ROOT, origin.uid) else None,
            client=origin.client,
            tenant=origin.tenant or None,
        )


def _busiest(connections: list[Connection]) -> tuple[list[ConnectionStatus], MoreConnections | None]:
    """Return the connections to list, and the sums over the rest."""
    if len(connections) <= _MOST_LISTED:
        return [_connection(each) for each in connections], None
    ranked = sorted(connections, key=lambda each: (len(each.requests), each.requests.tokens_served), reverse=True)
    rest = [each.requests for each in ranked[_MOST_LISTED:]]
    more = MoreConnections(
        connections=len(rest),
        in_flight=sum(map(len, rest)),
        tokens_served=sum(each.tokens_served for each in rest),
    )
    return [_connection(each) for each in ranked[:_MOST_LISTED]], more


def _connection(connection: Connection) -> ConnectionStatus:
    return ConnectionStatus(
        connection=connection.number,
        uid=connection.peer.uid,
        pid=connection.peer.pid,
        in_flight=len(connection.requests),
        tokens_served=connection.requests.tokens_served,
        client=connection.label,
        tenant=connection.tenant or None,
    )
