"""Requests of one connection that have no answer yet, each from its frame to its response."""

from collections.abc import Callable
from functools import partial

from car_daemon.connections.call import RpcCall
from car_daemon.connections.memory_share import Sharing
from car_daemon.connections.outbound import OutboundBuffer
from car_daemon.people.identity import Identity
from car_protocol.envelope import Batch, Call, Failure, Id, encode_message, join_batch
from car_protocol.errors import RpcError
from car_protocol.infer import CancelParams
from car_protocol.methods import METHODS
from car_protocol.params import decode_params

CANCEL = "$/cancelRequest"
# Takes an encoded answer and the id in it.
AddAnswer = Callable[[Id | None, bytes], None]


class Batches:
    """The incomplete batches of one connection; their encoded answers count towards the clients' memory."""

    def __init__(self, send: Callable[[bytes], None], share: Sharing) -> None:
        self._send = send
        self._share = share(lambda: self._bytes)
        self.ids: set[Id] = set()  # of all answers that wait for others of their batch
        self._bytes = 0  # of these answers
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
        """Drop all answers, also later answers."""
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


def _waits(request: Call) -> bool:
    """Return whether a request may be answered later than at once."""
    method = METHODS.get(request.method)
    return method is not None and method.waits


class RequestsInFlight:
    """The unanswered requests of one connection, each with an id of its own; at most `most` requests may wait.

    `carry_out` ends the call that it gets now or later; `count_refused` counts a request that is refused here.
    """

    def __init__(
        self,
        carry_out: Callable[[Call, RpcCall], None],
        count_refused: Callable[[Call], None],
        most: int,
        outbound: OutboundBuffer,
        share: Sharing,
        speaker: Identity,
    ) -> None:
        self._carry_out = carry_out
        self._count_refused = count_refused
        self._most = most
        self._outbound = outbound
        self._batches = Batches(self._send, share)
        self._calls: dict[Id, RpcCall] = {}
        self._speaker = speaker  # whose calls come now
        self.tokens_served = 0  # in the speaker's answers
        self.on_answer: Callable[[], None] | None = None  # called after every response or batch of responses, if set

    def __len__(self) -> int:
        return len(self._calls)

    def speak_as(self, identity: Identity) -> None:
        """Count for another identity from now on."""
        self._speaker = identity
        self.tokens_served = 0

    @property
    def own(self) -> int:
        """The number of the speaker's requests."""
        return sum(call.identity == self._speaker for call in self._calls.values())

    def receive(self, frame: Call | Batch) -> None:
        """Carry out a frame: a request, a notification or a batch of both."""
        if isinstance(frame, Batch):
            self._receive_batch(frame)
        elif frame.id is None:
            self._notified(frame)
        else:
            self._begin(frame, frame.id, None)

    def refuse(self, error: RpcError) -> None:
        """Answer a frame that could not be decoded."""
        self._send(encode_message(Failure(None, error.as_object())))

    def identity_of(self, request_id: Id) -> Identity | None:
        """Return whose a request is; None for unknown and finished ids."""
        call = self._calls.get(request_id)
        return None if call is None else call.identity

    def cancel(self, request_id: Id) -> None:
        """Cancel a request; unknown and finished ids are ignored."""
        call = self._calls.get(request_id)
        if call is not None:
            call.cancel("cancelled")

    def cancel_all(self) -> None:
        """Cancel all requests."""
        for call in list(self._calls.values()):
            call.cancel("cancelled")

    def drop_batches(self) -> None:
        """Drop the answers of incomplete batches, also later answers, and the entries not carried out yet."""
        self._batches.drop()

    def _receive_batch(self, batch: Batch) -> None:
        add = self._batches.begin(batch)
        for entry in batch.entries:
            if self._batches.dropped:
                return
            if isinstance(entry, RpcError):
                add(None, encode_message(Failure(None, entry.as_object())))
            elif entry.id is None:
                self._notified(entry)
            else:
                self._begin(entry, entry.id, add)

    def _notified(self, notification: Call) -> None:
        """Carry out a cancellation; all other notifications, and unreadable params, are ignored."""
        if notification.method == CANCEL:
            try:
                params = decode_params(CancelParams, notification.params)
            except RpcError:
                return
            self.cancel(params.id)

    def _begin(self, request: Call, request_id: Id, add: AddAnswer | None) -> None:
        refusal = self._refusal(request, request_id, in_batch=add is not None)
        if refusal is None:
            call = RpcCall(request_id, len(request.params), partial(self._end, add), self._outbound)
            self._calls[request_id] = call
            self._carry_out(request, call)
        else:
            self._count_refused(request)
            answer = encode_message(refusal)
            if add is None:
                self._send(answer)
            else:
                add(refusal.id, answer)

    def _refusal(self, request: Call, request_id: Id, *, in_batch: bool) -> Failure | None:
        if request_id in self._calls or request_id in self._batches.ids:
            return Failure(None, RpcError("invalid_request", id=request_id).as_object())
        if len(self._calls) >= self._most and _waits(request):
            return Failure(request_id, RpcError("limit", limit="max_in_flight", value=self._most).as_object())
        return refusal_in_batch(request) if in_batch else None

    def _end(self, add: AddAnswer | None, call: RpcCall, frame: bytes) -> None:
        del self._calls[call.id]
        if call.identity == self._speaker:
            self.tokens_served += call.completion_tokens
        if add is None:
            self._send(frame)
        else:
            add(call.id, frame)

    def _send(self, answer: bytes) -> None:
        self._outbound.send(answer)
        if self.on_answer is not None:
            self.on_answer()
