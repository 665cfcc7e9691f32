"""Pieces of a stream that wait, as one piece."""

import msgspec

from car_daemon.engine.frames import Extra

_encode = msgspec.json.Encoder().encode


class MergedPiece:
    """Text put together, and everything beside it in order; `empty` where nothing waits."""

    def __init__(self) -> None:
        # Mutable state: the texts, and what came beside them.
        self._texts: list[str] = []
        self._extras: list[Extra] = []

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._texts

    def add(self, text: str, extra: Extra | None) -> int:
        """Add a piece; return about how many bytes it takes on the wire."""
        self._texts.append(text)
        if extra is None:
            return len(_encode(text))
        self._extras.append(extra)
        return len(_encode((text, extra)))

    def take(self) -> tuple[str, Extra | None]:
        """Return all of it as one piece and begin anew."""
        text, extras = "".join(self._texts), self._extras
        self._texts, self._extras = [], []
        return text, _merged(extras) if extras else None


def _merged(extras: list[Extra]) -> Extra:
    return Extra(
        tokens=[token for extra in extras for token in extra.tokens],
        logprobs=[logprob for extra in extras for logprob in extra.logprobs],
        reasoning="".join(extra.reasoning for extra in extras),
        tool_calls=[call for extra in extras for call in extra.tool_calls],
    )
