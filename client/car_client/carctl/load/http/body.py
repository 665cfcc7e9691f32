"""The response to one HTTP/1.1 request: its head, then its body, chunked or up to the end of the connection."""

from car_client.carctl.load.codec import LoadError

_MOST_HEAD_BYTES = 64 * 1024


class HttpBody:
    """Extracts the body from received bytes; `ended` once a chunked one is complete."""

    def __init__(self) -> None:
        self._rest = b""  # received and not parsed yet
        self._head: dict[str, str] | None = None  # None until it is complete
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body in these bytes; raises LoadError unless it is a stream of events."""
        self._rest += data
        if self._head is None and not self._read_head():
            return b""
        if self._chunked:
            return b"".join(self._chunks())
        body, self._rest = self._rest, b""
        return body

    @property
    def _chunked(self) -> bool:
        assert self._head is not None
        return self._head.get("transfer-encoding", "").lower() == "chunked"

    def _read_head(self) -> bool:
        head, ended, rest = self._rest.partition(b"\r\n\r\n")
        if not ended:
            if len(self._rest) > _MOST_HEAD_BYTES:
                raise LoadError("the server does not speak HTTP/1: check the address")
            return False
        self._rest = rest
        status, *lines = head.decode("latin-1").split("\r\n")
        self._head = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        version, _, code = status.partition(" ")
        content_type = self._head.get("content-type", "")
        if not version.startswith("HTTP/1."):
            raise LoadError("the server does not speak HTTP/1: check the address")
        if not code.startswith("200"):
            raise LoadError(f"the server answered {code}: check the address and its path")
        if not content_type.startswith("text/event-stream"):
            raise LoadError(f"the server answered with {content_type or 'no type'} instead of a stream of events")
        return True

    def _chunks(self) -> list[bytes]:
        found = []
        while not self.ended:
            line, line_end, rest = self._rest.partition(b"\r\n")
            if not line_end:
                break
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                raise LoadError("the server's answer is not valid HTTP: a chunk has no size") from None
            # Every chunk ends with an empty line; the last one has no bytes.
            if len(rest) < size + 2:
                break
            found.append(rest[:size])
            self._rest = rest[size + 2 :]
            self.ended = size == 0
        return found
