"""Search for stop strings in a text that arrives in pieces."""

import re


class StopSearch:
    """Keep back text that may become a stop string; the earliest wins, of several at one place the longest."""

    def __init__(self, stops: list[str]) -> None:
        longest_first = sorted(stops, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if stops else None
        self._starts = {stop[:end] for stop in stops for end in range(1, len(stop))}
        self._longest = max(map(len, stops), default=0)
        self._undecided = ""
        self.stopped_by: str | None = None

    def push(self, text: str) -> str:
        """Read a piece of text; return the text that it releases."""
        if self._pattern is None:
            return text
        if self.stopped_by is not None:
            return ""
        self._undecided += text
        length = len(self._undecided)
        places = range(max(0, length - self._longest + 1), length)
        decided = next((place for place in places if self._undecided[place:] in self._starts), length)
        return self._release(self._search(decided))

    def finish(self) -> str:
        """Return the undecided text, after the last piece."""
        return self._release(self._search(len(self._undecided)))

    def _search(self, end: int) -> int:
        """Return the end of the text that may be released: a stop string that begins before `end`, or `end`."""
        found = self._pattern.search(self._undecided) if self._pattern else None
        if found is None or found.start() >= end:
            return end
        self.stopped_by = found[0]
        return found.start()

    def _release(self, end: int) -> str:
        released = self._undecided[:end]
        self._undecided = "" if self.stopped_by is not None else self._undecided[end:]
        return released
