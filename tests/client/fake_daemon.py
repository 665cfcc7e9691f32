"""A daemon on a real Unix socket that answers as its knobs say, and keeps the calls that it received."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from car_protocol.envelope import (
    Batch,
    Call,
    Failure,
    Id,
    Notification,
    Result,
    decode_frame,
    encode_message,
)
from car_protocol.errors import RpcError
from car_protocol.framing import LineFramer
from car_protocol.methods import CAPACITY_CHANGED, CHUNK, MODELS_PROGRESS, PROGRESS, STATUS_CHANGED
from tests.client.samples import ANSWER, DECISION, EMBEDDINGS, RANKING, capacity, details, model, status
from tests.pace import HANG_S

PATIENCE_S = HANG_S


class Peer:
    """One accepted connection; frames may be sent from any thread."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._sending = threading.Lock()
        self.in_flight: dict[Id, int] = {}  # the chunks sent so far, by request
        self.subscribed = False
        self.watching = False

    def send(self, *messages: Result | Failure | Notification) -> None:
        """Send messages in one write."""
        self.send_bytes(b"".join(encode_message(message) for message in messages))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are; a client that has left does not matter."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(data)

    def read(self) -> bytes:
        """Return received bytes, none at the end."""
        try:
            return self._socket.recv(65536)
        except OSError:
            return b""

    def drop(self) -> None:
        """End the connection in both directions."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the descriptor back."""
        self._socket.close()


class FakeDaemon:
    """Answers on `path` between `start` and `stop`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The knobs.
        self.answers: dict[str, Any] = {  # results, errors, or functions of the params, by method
            "infer": ANSWER | {"text": "Hello"},
            "tokenize": {"tokens": [1, 2, 3], "count": 3},
            "detokenize": {"text": "abc"},
            "models/list": {"models": [model()]},
            "models/show": details(),
            "daemon/status": status(str(path)),
            "decide": DECISION,
            "embed": EMBEDDINGS,
            "rerank": RANKING,
            "daemon/metrics": {"text": "card_up 1\n"},
            "daemon/cancel": {},
        }
        self.first: dict[str, list[Any]] = {}  # replies to the first calls of a method; None drops the connection
        self.pieces: list[str | dict[str, Any]] = ["Hel", "lo"]  # the chunks of a stream
        self.progress: list[dict[str, Any]] = []  # sent before the chunks of a stream
        self.numbers: dict[int, int] = {}  # sequence numbers in place of a chunk's own
        self.silent_after: int | None = None  # a stream stops after this many chunks
        self.claimed: int | None = None  # the number of chunks that a stream's answer names
        self.ending: dict[str, Any] = {}  # further members of a stream's answer
        self.capacity_members: dict[str, Any] = {}  # further members of the capacity object
        self.silent: set[str] = set()  # methods that are answered only when cancelled
        self.chats = True  # the model has a chat template
        self.offers_status = True  # the status can be subscribed to
        self.refusal: RpcError | None = None  # sent to each connection before it is closed
        self.refused = threading.Event()  # set once a connection was
        self.raw_answer: bytes | None = None  # sent in place of every answer
        self._changed = threading.Condition()  # guards everything below
        self._generation = 0
        self._capacity = 4
        self._peers: list[Peer] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self._stopping = False
        self.calls: list[Call] = []
        self.accepted = 0
        self.gone = 0

    def start(self) -> Self:
        """Bind and answer."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.path))
        listener.listen(64)
        self._listener = listener
        self._run(self._accept, listener)
        return self

    def stop(self) -> None:
        """Close everything and remove the socket; may be called twice."""
        if self._listener is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waker:
            self._stopping = True
            waker.connect(str(self.path))
            self._threads.pop(0).join(PATIENCE_S)
        self.drop()
        while self._threads:
            self._threads.pop().join(PATIENCE_S)
        self._stopping = False
        self._listener.close()
        self._listener = None
        self.path.unlink()

    def drop(self) -> None:
        """End every connection."""
        with self._changed:
            peers = list(self._peers)
        for peer in peers:
            peer.drop()

    def declare(self, figure: int) -> None:
        """Change the capacity and notify the subscribed connections."""
        with self._changed:
            self._capacity, self._generation = figure, self._generation + 1
            peers = [peer for peer in self._peers if peer.subscribed]
        for peer in peers:
            peer.send(Notification(CAPACITY_CHANGED, self._capacity_object()))

    def go_on(self, piece: dict[str, Any]) -> None:
        """Send a further chunk to the streams that stopped; wait for the first of them."""
        self._wait(self._stopped)
        with self._changed:
            peers = [(peer, *call) for peer in self._peers for call in peer.in_flight.items()]
        for peer, call_id, sent in peers:
            peer.in_flight[call_id] = sent + 1
            peer.send(Notification(CHUNK, {"id": call_id, "seq": sent, "text": ""} | piece))

    def finish(self) -> None:
        """End the streams that stopped, as complete as they are; wait for the first of them."""
        self._wait(self._stopped)
        with self._changed:
            calls = [(peer, call_id, sent) for peer in self._peers for call_id, sent in peer.in_flight.items()]
            for peer, call_id, _ in calls:
                del peer.in_flight[call_id]
        for peer, call_id, sent in calls:
            peer.send(Result(call_id, ANSWER | self.ending | {"chunks": sent}))

    def read_on(self, done: int, total: int) -> None:
        """Send the progress of a prompt to the streams that stopped; wait for the first of them."""
        self._wait(self._stopped)
        with self._changed:
            peers = [(peer, call_id) for peer in self._peers for call_id in peer.in_flight]
        for peer, call_id in peers:
            peer.send(Notification(PROGRESS, {"id": call_id, "phase": "prefill", "done": done, "total": total}))

    def load_on(self, done: int, total: int) -> None:
        """Send the progress of the loads that are not answered yet; wait for the first of them."""
        self._wait(self._stopped)
        with self._changed:
            peers = [(peer, call_id) for peer in self._peers for call_id in peer.in_flight]
        for peer, call_id in peers:
            params = {"id": call_id, "model": "guide", "done": done, "total": total}
            peer.send(Notification(MODELS_PROGRESS, params))

    def loaded(self) -> None:
        """Answer the loads that are not answered yet."""
        with self._changed:
            peers = [(peer, call_id) for peer in self._peers for call_id in peer.in_flight]
        for peer, call_id in peers:
            del peer.in_flight[call_id]
            peer.send(Result(call_id, {}))

    def tell_status(self, **changes: Any) -> None:
        """Send a status to the connections that subscribed to it."""
        with self._changed:
            peers = [peer for peer in self._peers if peer.watching]
        for peer in peers:
            peer.send(Notification(STATUS_CHANGED, self.answers["daemon/status"] | changes))

    def wait_for(self, method: str, count: int = 1) -> Call:
        """Wait until a method was called that often; returns the last such call."""
        self._wait(lambda: len(self._named(method)) >= count)
        return self._named(method)[count - 1]

    def wait_until_gone(self, count: int = 1) -> None:
        """Wait until that many connections have ended."""
        self._wait(lambda: self.gone >= count)

    async def saw(self, method: str, count: int = 1) -> Call:
        """`wait_for` without holding the event loop."""
        return await asyncio.to_thread(self.wait_for, method, count)

    def params(self, method: str) -> Any:
        """Return the params of the last call of a method."""
        return msgspec.json.decode(self._named(method)[-1].params)

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_S), [call.method for call in self.calls]

    def _named(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connected, _ = listener.accept()
            if self._stopping:
                connected.close()
                return
            peer = Peer(connected)
            with self._changed:
                self.accepted += 1
                self._peers.append(peer)
            self._run(self._serve, peer)

    def _serve(self, peer: Peer) -> None:
        if self.refusal:
            peer.send(Failure(None, self.refusal.as_object()))
            peer.drop()
            self.refused.set()
        framer = LineFramer()
        while data := peer.read():
            for frame in framer.feed(data):
                self._take(peer, frame)
        with self._changed:
            self._peers.remove(peer)
            self.gone += 1
            peer.close()
            self._changed.notify_all()

    def _take(self, peer: Peer, frame: bytes) -> None:
        call = decode_frame(frame)
        assert not isinstance(call, Batch)
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()
        self._answer(peer, call)

    def _answer(self, peer: Peer, call: Call) -> None:
        if call.method == "$/cancelRequest" and call.method not in self.silent:
            self._cancel(peer, msgspec.json.decode(call.params)["id"])
        elif self.raw_answer is not None and call.method != "inference/capacity":
            peer.send_bytes(self.raw_answer)
        elif call.id is None:
            pass
        elif self.first.get(call.method):
            self._reply(peer, call.id, self.first[call.method].pop(0))
        elif call.method in self.silent:
            peer.in_flight[call.id] = 0
        elif call.method == "inference/capacity":
            peer.subscribed = True
            peer.send(Result(call.id, self._capacity_object()))
        elif call.method == "daemon/status" and b'"subscribe"' in call.params:
            self._subscribe(peer, call)
        elif not self.chats and b'"messages"' in call.params:
            self._reply(peer, call.id, RpcError("model_unavailable", lacks="chat_template"))
        elif call.method == "infer_stream" and call.method not in self.answers:
            self._stream(peer, call.id)
        else:
            answer = self.answers.get(call.method, RpcError("method_not_found"))
            self._reply(peer, call.id, answer(msgspec.json.decode(call.params)) if callable(answer) else answer)

    def _subscribe(self, peer: Peer, call: Call) -> None:
        assert call.id is not None
        if not self.offers_status:
            self._reply(peer, call.id, RpcError("invalid_params", param="subscribe"))
            return
        peer.watching = msgspec.json.decode(call.params)["subscribe"]
        self._reply(peer, call.id, self.answers["daemon/status"])

    def _reply(self, peer: Peer, call_id: Id, answer: Any) -> None:
        if answer is None:
            peer.drop()
        elif isinstance(answer, RpcError):
            peer.send(Failure(call_id, answer.as_object()))
        else:
            peer.send(Result(call_id, answer))

    def _stream(self, peer: Peer, call_id: Id) -> None:
        sent = 0
        for progress in self.progress:
            peer.send(Notification(PROGRESS, {"id": call_id} | progress))
        for piece in self.pieces[: self.silent_after]:
            seq = self.numbers.get(sent, sent)
            said = piece if isinstance(piece, dict) else {"text": piece}
            peer.send(Notification(CHUNK, {"id": call_id, "seq": seq, "text": ""} | said))
            sent += 1
        if self.silent_after is not None:
            with self._changed:
                peer.in_flight[call_id] = sent
                self._changed.notify_all()
            return
        claimed = sent if self.claimed is None else self.claimed
        peer.send(Result(call_id, ANSWER | self.ending | {"chunks": claimed}))

    def _stopped(self) -> bool:
        return any(peer.in_flight for peer in self._peers)

    def _cancel(self, peer: Peer, call_id: Id) -> None:
        if (chunks := peer.in_flight.pop(call_id, None)) is not None:
            error = RpcError("cancelled", started=chunks > 0, chunks=chunks)
            peer.send(Failure(call_id, error.as_object()))

    def _capacity_object(self) -> dict[str, Any]:
        return capacity(self._capacity, self._generation) | self.capacity_members


@contextmanager
def once_asked(daemon: FakeDaemon, method: str, then: Callable[[], None]) -> Iterator[None]:
    """Act from another thread as soon as the daemon received a call."""

    def act() -> None:
        daemon.wait_for(method)
        then()

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()
