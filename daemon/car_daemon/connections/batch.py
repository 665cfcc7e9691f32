"""The answers of one batch, sent together."""

from collections.abc import Callable

from car_daemon.connections.memory_share import Sharing
from car_protocol.envelope import Batch, Call, Failure, Id, join_batch
from car_protocol.errors import RpcError
from car_protocol.methods import METHODS

# Takes an encoded answer and the id in it.
AddAnswer = Callable[[Id | None, bytes], None]


class Batches:
    """The incomplete batches of one connection; their encoded answers count towards the clients' memory."""

    def __init__(self, send: Callable[[bytes], None], share: Sharing) -> None:
        self._send = send
        self._share = share(lambda: self._bytes)
        self.ids: set[Id] = set()  # of all answers that wait for others of their batch
        self._bytes = 0  # of those answers
        self.dropped = False

    def begin(self, batch: Batch) -> AddAnswer:
        """Return the function that collects the batch's answers and sends them with the last one."""
        expected = sum(isinstance(entry, RpcError) or entry.id is not None for entry in batch.entries)
        answers: list[bytes] = []
        ids: set[Id] = set()

        def add(answer_id: Id | None, answer: bytes) -> None:
            if self.dropped:
                return
            answers.append(answer)
            if len(answers) == expected:
                self.ids -= ids
                self._count(-sum(map(len, answers[:-1])))
                self._send(join_batch(answers))
            else:
                if answer_id is not None:
                    ids.add(answer_id)
                    self.ids.add(answer_id)
                self._count(len(answer))

        return add

    def drop(self) -> None:
        """Drop all answers, also those to come."""
        self.dropped = True
        self._count(-self._bytes)

    def _count(self, more: int) -> None:
        self._bytes += more
        self._share.changed()


def refusal_in_batch(request: Call) -> Failure | None:
    """Return the answer to a streaming request, which a batch may not contain; None for other requests."""
    method = METHODS.get(request.method)
    if method is None or not method.streams:
        return None
    return Failure(request.id, RpcError("invalid_request").as_object())
