"""The answers of one batch, sent together."""

from collections.abc import Callable

from car_protocol.envelope import Batch, Call, Failure, Result, encode_batch
from car_protocol.errors import RpcError
from car_protocol.methods import METHODS


class BatchAnswers:
    """Collects answers until every entry that gets one has it."""

    def __init__(self, batch: Batch, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._expected = sum(isinstance(entry, RpcError) or entry.id is not None for entry in batch.entries)
        # Mutable state: the answers so far.
        self._answers: list[Result | Failure] = []

    def add(self, answer: Result | Failure) -> None:
        """Take one answer; the last one sends them all."""
        self._answers.append(answer)
        if len(self._answers) == self._expected:
            self._send(encode_batch(self._answers))


def entry_refusal(entry: Call | RpcError) -> Failure | None:
    """Return the answer to an entry that may not run: no request, or one that streams."""
    if isinstance(entry, RpcError):
        return Failure(None, entry.as_object())
    method = METHODS.get(entry.method)
    if method is not None and method.streams and entry.id is not None:
        return Failure(entry.id, RpcError("invalid_request").as_object())
    return None
