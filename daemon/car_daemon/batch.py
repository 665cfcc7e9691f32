"""The answers of one batch, sent together."""

from collections.abc import Callable

from car_daemon.held import Sharing
from car_protocol.envelope import Batch, Call, Failure, Id, Result, encode_message, join_batch
from car_protocol.errors import RpcError
from car_protocol.methods import METHODS


class Batches:
    """The incomplete batches of one connection; their answers are a share of what is held for all clients."""

    def __init__(self, send: Callable[[bytes], None], share: Sharing) -> None:
        self._send = send
        self._share = share(lambda: self._bytes)
        # Mutable state: the ids and the bytes of all answers that wait for others of their batch, and whether nobody
        # wants them.
        self.ids: set[Id] = set()
        self._bytes = 0
        self._dropped = False

    def begin(self, batch: Batch) -> Callable[[Result | Failure], None]:
        """Return what takes the answers of a batch; the last one sends them all."""
        expected = sum(isinstance(entry, RpcError) or entry.id is not None for entry in batch.entries)
        answers: list[bytes] = []
        ids: set[Id] = set()

        def add(answer: Result | Failure) -> None:
            if self._dropped:
                return
            answers.append(encode_message(answer))
            if len(answers) == expected:
                self.ids -= ids
                self._hold(-sum(map(len, answers[:-1])))
                self._send(join_batch(answers))
            else:
                if answer.id is not None:
                    ids.add(answer.id)
                    self.ids.add(answer.id)
                self._hold(len(answers[-1]))

        return add

    def drop(self) -> None:
        """Forget all of them, and what comes of them."""
        self._dropped = True
        self._hold(-self._bytes)

    def _hold(self, more: int) -> None:
        self._bytes += more
        self._share.changed()


def refusal_in_batch(call: Call) -> Failure | None:
    """Return the answer to a call that may not stand in a batch: one that streams."""
    method = METHODS.get(call.method)
    if call.id is None or method is None or not method.streams:
        return None
    return Failure(call.id, RpcError("invalid_request").as_object())
