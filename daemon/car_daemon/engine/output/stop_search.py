"""Stop strings in a text that arrives in pieces."""

import re


class StopSearch:
    """Hold back what could still become a stop string; the earliest one wins, of those at one place the longest."""

    def __init__(self, stops: list[str]) -> None:
        longest_first = sorted(stops, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if stops else None
        self._starts = {stop[:end] for stop in stops for end in range(1, len(stop))}
        self._longest = max(map(len, stops), default=0)
        # Mutable state: undecided text, and the stop string that was found.
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, text: str) -> str:
        """Take a piece of text; return what it releases."""
        if self._pattern is None:
            return text
        if self.stopped_by is not None:
            return ""
        self._held += text
        undecided = self._undecided_from()
        return self._release(self._search(undecided))

    def finish(self) -> str:
        """Return what was held back, when the text ends here."""
        return self._release(self._search(len(self._held)))

    def _undecided_from(self) -> int:
        length = len(self._held)
        places = range(max(0, length - self._longest + 1), length)
        return next((place for place in places if self._held[place:] in self._starts), length)

    def _search(self, end: int) -> int:
        """Return where the text ends that may go out: at a stop string that begins before `end`, or there."""
        found = self._pattern.search(self._held) if self._pattern else None
        if found is None or found.start() >= end:
            return end
        self.stopped_by = found[0]
        return found.start()

    def _release(self, end: int) -> str:
        released = self._held[:end]
        self._held = "" if self.stopped_by is not None else self._held[end:]
        return released
