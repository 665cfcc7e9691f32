"""The answers of one batch, sent together."""

from collections.abc import Callable

from car_daemon.held import Sharing
from car_protocol.envelope import Batch, Call, Failure, Result, encode_message, join_batch
from car_protocol.errors import RpcError
from car_protocol.methods import METHODS


class BatchAnswers:
    """Collects answers until every entry that gets one has it; until then they are a share of what is held for all."""

    def __init__(self, batch: Batch, send: Callable[[bytes], None], share: Sharing) -> None:
        self._send = send
        self._expected = sum(isinstance(entry, RpcError) or entry.id is not None for entry in batch.entries)
        self._share = share(lambda: sum(map(len, self._answers)))
        # Mutable state: the answers so far, a frame each.
        self._answers: list[bytes] = []

    def add(self, answer: Result | Failure) -> None:
        """Take one answer; the last one sends them all."""
        self._answers.append(encode_message(answer))
        if len(self._answers) == self._expected:
            answers, self._answers = self._answers, []
            self._send(join_batch(answers))
        self._share.changed()


def entry_refusal(entry: Call | RpcError) -> Failure | None:
    """Return the answer to an entry that may not run: no request, or one that streams."""
    if isinstance(entry, RpcError):
        return Failure(None, entry.as_object())
    method = METHODS.get(entry.method)
    if method is not None and method.streams and entry.id is not None:
        return Failure(entry.id, RpcError("invalid_request").as_object())
    return None
