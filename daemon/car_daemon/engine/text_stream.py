"""Bytes of tokens into text that may be sent: whole characters only, and nothing of a stop string."""

import codecs


class TextStream:
    """Hold back what could still become a character or a stop string."""

    def __init__(self, stops: list[str]) -> None:
        # The longest first: at equal start the longest stop string wins.
        self._stops = sorted(stops, key=len, reverse=True)
        # Mutable state: undecoded bytes, undecided text, and the stop string that was found.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, piece: bytes) -> str:
        """Take one token's bytes; return the text that they release."""
        return self._release(self._decoder.decode(piece), ended=False)

    def finish(self) -> str:
        """Return what was held back, when no more tokens come."""
        return self._release(self._decoder.decode(b"", final=True), ended=True)

    def _release(self, text: str, *, ended: bool) -> str:
        if not self._stops:
            return text
        if self.stopped_by is not None:
            return ""
        self._held += text
        safe = self._undecided_from(ended=ended)
        released, self._held = self._held[:safe], self._held[safe:]
        return released

    def _undecided_from(self, *, ended: bool) -> int:
        """Return where the first possible stop string begins; sets `stopped_by` once it is certain."""
        for start in range(len(self._held)):
            tail = self._held[start:]
            if not ended and any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return start
            for stop in self._stops:
                if tail.startswith(stop):
                    self.stopped_by = stop
                    return start
        return len(self._held)
