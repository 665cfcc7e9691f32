"""The data of server-sent events."""


class SseReader:
    """Cuts a byte stream into the data of events."""

    def __init__(self) -> None:
        self._rest = b""  # of an incomplete line
        self._data: list[bytes] = []  # lines of the incomplete event

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that these bytes complete."""
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
