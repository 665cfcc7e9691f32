"""The engine's side of its children: one works, another stands ready, and a child that fails is replaced at once."""

import os
import select
import socket
import sys
import time
from collections.abc import Callable
from queue import LifoQueue
from threading import Lock

import msgspec

from car_base.host.memory import read_process_memory
from car_base.ipc.codec import encode_frame
from car_engine.child.fork_server import ORDER_BYTES, START
from car_engine.child.frames import Answer, ChildSettings, Job, Opened, OpenTemplate, decode_answer
from car_engine.child.limits import MEMORY_BYTES, in_words, wall_s
from car_engine.child.link import LinkClosed, exactly, receive

# As often a job that takes long is looked at, if the kernel does not limit its memory.
_LOOK_S = 0.05
# One for the tokenizer's thread and one for the encoder's, so that neither waits for the other.
_CHILDREN = 2


class ChildLost(Exception):
    """A child ended, or was ended, at a job; the message has the limits that the job may have passed."""


class TooSlow(Exception):
    """A job passed its time or its memory."""


def resident_of(number: int) -> int:
    """Return the bytes that a process has in memory, if the kernel does not limit them; else 0."""
    return 0 if sys.platform == "linux" else read_process_memory(number).resident


class ChildProcess:
    """One child, for one thread at a time."""

    def __init__(
        self,
        number: int,
        link: socket.socket,
        memory: Callable[[int], int] = resident_of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number = number
        self._link = link
        self._memory = memory
        self._clock = clock
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._owed = 0  # answers that it has not given yet
        self._deadline = 0.0

    @property
    def ended(self) -> bool:
        """True if it has ended between two jobs, as under pressure for memory."""
        return not self._owed and bool(self._poll.poll(0))

    def give(self, job: Job) -> int:
        """Send a job; return its size. Raises ChildLost."""
        frame = encode_frame(job)
        limit_s = wall_s(len(frame))
        self._deadline = max(self._clock(), self._deadline) + limit_s
        self._owed += 1
        try:
            self._link.settimeout(limit_s)
            self._link.sendall(frame)
        except OSError:
            raise ChildLost(in_words(len(frame))) from None
        return len(frame)

    def ask(self, job: Job) -> Answer:
        """Return the answer to a job, after the answers that it owes. Raises ChildLost."""
        size = self.give(job)
        try:
            while self._owed > 1:
                self._received()
            answer: Answer = decode_answer(self._received())
        except (OSError, LinkClosed, TooSlow, msgspec.MsgspecError):
            raise ChildLost(in_words(size)) from None
        return answer

    def close(self) -> None:
        """Close its socket."""
        self._link.close()

    def _received(self) -> bytearray:
        body = receive(self._link, self._wait)
        self._owed -= 1
        return body

    def _wait(self) -> None:
        """Return once there is something to read; raises TooSlow."""
        while not self._poll.poll(1000 * max(0.0, min(_LOOK_S, self._deadline - self._clock()))):
            if self._clock() > self._deadline or self._memory(self.number) > MEMORY_BYTES:
                raise TooSlow


class Children:
    """The children of one engine, for any of its threads; `server` is the socket of their fork server."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._lock = Lock()  # of the server's socket
        self._openings: dict[str, OpenTemplate] = {}  # the first jobs of each child, by their names
        self._idle: LifoQueue[ChildProcess] = LifoQueue()

    def start(self, settings: ChildSettings) -> None:
        """Start the children; raises OSError and LinkClosed if their server has ended."""
        self._server.sendall(encode_frame(settings))
        for _ in range(_CHILDREN):
            self._idle.put(self._started())

    def ask(self, job: Job) -> Answer:
        """Return the answer to a job; a template that can be used is opened in all children.

        Raises ChildLost, and OSError and LinkClosed if the server has ended.
        """
        child = self._idle.get()
        try:
            if child.ended:
                child = self._replaced(child)
            answer = child.ask(job)
        except ChildLost:
            child = self._replaced(child)
            raise
        else:
            if isinstance(job, OpenTemplate) and isinstance(answer, Opened):
                self._openings[job.name] = job
                self._idle.put(self._replaced(self._idle.get()))
            return answer
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """End the children that do no job."""
        while not self._idle.empty():
            self._idle.get().close()

    def _replaced(self, child: ChildProcess) -> ChildProcess:
        with self._lock:
            self._server.sendall(child.number.to_bytes(ORDER_BYTES, "little"))
        child.close()
        return self._started()

    def _started(self) -> ChildProcess:
        with self._lock:
            self._server.sendall(START.to_bytes(ORDER_BYTES, "little"))
            data, descriptors, _, _ = socket.recv_fds(self._server, ORDER_BYTES, 1)
            if not descriptors:
                raise LinkClosed
            data += exactly(self._server, ORDER_BYTES - len(data))
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        child = ChildProcess(int.from_bytes(data, "little"), socket.socket(fileno=descriptors[0]))
        for opening in self._openings.values():
            child.give(opening)
        return child
