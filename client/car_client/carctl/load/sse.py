"""Server-sent events, of which only the data is of interest."""


class SseReader:
    """Cuts a byte stream into the data of events."""

    def __init__(self) -> None:
        # Mutable state: what came of a line that is not yet whole, and the data lines of the event so far.
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that are whole now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
