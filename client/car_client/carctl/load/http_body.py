"""The answer to one HTTP/1.1 request: its head, then its body, in chunks or as it comes."""

from car_client.carctl.load.wire import LoadError

_MOST_HEAD_BYTES = 64 * 1024


class HttpBody:
    """Takes bytes and returns those of the body; `ended` once all of it came, which may take the connection's end."""

    def __init__(self) -> None:
        # Mutable state: what was not read yet, the head once it is whole, and how much of a chunk is to come.
        self._rest = b""
        self._head: dict[str, str] | None = None
        self._left = 0
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """Return what these bytes add to the body. Raises LoadError where it is no stream of events."""
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
                raise LoadError("what answers there does not speak HTTP")
            return False
        self._rest = rest
        status, *lines = head.decode("latin-1").split("\r\n")
        self._head = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        _check(status, self._head.get("content-type", ""))
        return True

    def _chunks(self) -> list[bytes]:
        found = []
        while not self.ended and (size := self._size()) is not None:
            # A chunk ends with an empty line of its own, and so does the last, which has no bytes.
            if len(self._rest) < size[1] + size[0] + 2:
                break
            found.append(self._rest[size[1] : size[1] + size[0]])
            self._rest = self._rest[size[1] + size[0] + 2 :]
            self.ended = size[0] == 0
        return found

    def _size(self) -> tuple[int, int] | None:
        """Return the size of the next chunk and where it begins, once that line is whole."""
        line, ended, _ = self._rest.partition(b"\r\n")
        if not ended:
            return None
        try:
            return int(line.split(b";")[0], 16), len(line) + 2
        except ValueError:
            raise LoadError("the server's answer is no valid HTTP: a chunk has no size") from None


def _check(status: str, content_type: str) -> None:
    version, _, code = status.partition(" ")
    if not version.startswith("HTTP/1."):
        raise LoadError("what answers there does not speak HTTP")
    if not code.startswith("200"):
        raise LoadError(f"the server answered {code}: check the address and its path")
    if not content_type.startswith("text/event-stream"):
        raise LoadError(f"the server answered with {content_type or 'no type'} instead of a stream of events")
