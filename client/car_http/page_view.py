"""The daemon's status as the viewer of the page may see it."""

from msgspec import Raw, Struct, structs

from car_client.door.keys import DEFAULT_NAME, Key
from car_http.daemon.pool import decoded
from car_http.dialects import sse
from car_protocol.status import OtherUsers, SequenceStatus, Status, WaitingStatus


class Viewer(Struct, frozen=True):
    """The name of the viewer's key, empty without one; administrators see the requests of all and change models."""

    name: str
    administers: bool


def viewer_of(key: Key | None) -> Viewer:
    """Return the viewer with a key: the user's own key is `default`, and the Unix socket and `no_key` need none."""
    return Viewer(key.name, key.name == DEFAULT_NAME) if key else Viewer("", administers=True)


class PageEvent(Struct, frozen=True):
    """What the page shows."""

    you: Viewer
    status: Status


class PageViews:
    """The events of the newest status, each encoded once for all streams of a viewer."""

    def __init__(self) -> None:
        self._raw: Raw | None = None
        self._status: Status | None = None
        self._events: dict[Viewer, bytes] = {}

    def event(self, raw: Raw, viewer: Viewer) -> bytes:
        """Return the event of a status; raises ProtocolError."""
        if self._status is None or raw is not self._raw:
            self._status, self._raw, self._events = decoded(raw, Status), raw, {}
        if viewer not in self._events:
            # A daemon that hides others from the door lets nobody change models by it.
            you = viewer if self._status.others is None else structs.replace(viewer, administers=False)
            self._events[viewer] = sse.event("status", PageEvent(you, visible(self._status, viewer)))
        return self._events[viewer]


def visible(status: Status, viewer: Viewer) -> Status:
    """Return the members that a viewer may see: without connections, and of other keys only sums."""
    if viewer.administers:
        return structs.replace(status, connections=[])
    own = [each for each in status.sequences if _name(each) == viewer.name]
    waiting = [each for each in status.waiting if _name(each) == viewer.name]
    hidden = sum(each.requests for each in status.waiting) - sum(each.requests for each in waiting)
    running = len(status.sequences) - len(own)
    before = status.others or OtherUsers(connections=0, in_flight=0, sequences=0)
    return structs.replace(
        status,
        socket="",
        models=[structs.replace(each, path="") for each in status.models],
        connections=[],
        more_connections=None,
        cluster=None,
        sequences=own,
        waiting=waiting,
        others=structs.replace(
            before, in_flight=before.in_flight + running + hidden, sequences=before.sequences + running
        ),
    )


def _name(each: SequenceStatus | WaitingStatus) -> str | None:
    """Return the name of the key that a request came by."""
    return each.tenant if each.person is None else f"@{each.person}"
