"""The engine process: the intake thread, and the tokenizer and loop threads that it feeds."""

import faulthandler
import gc
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from car_daemon.engine.codec import FrameReader, decode_to_engine, encode_frame
from car_daemon.engine.commands import Commands
from car_daemon.engine.frames import (
    Detokenize,
    Forget,
    FromEngine,
    Halt,
    Heartbeat,
    Load,
    LoadFailed,
    Loading,
    Park,
    Prepare,
    PrepareTexts,
    Quit,
    Resume,
    Run,
    RunTexts,
    Share,
    ToEngine,
    Tokenize,
    Warned,
)
from car_daemon.engine.inbox import Forgotten, Inbox
from car_daemon.engine.preparer import Job
from car_daemon.place import named

if TYPE_CHECKING:
    from car_daemon.engine.assembly import Assembled

_HEARTBEAT_S = 1.0
_READ_BYTES = 1 << 18
# Regular expressions of some pre-tokenizers recurse with the text, and the compiler of grammars with its rules; this
# is virtual memory until it is used.
_STACK = 1 << 30
_PROGRESS_STEP = 0.05


class DaemonGone(Exception):
    """Nobody reads what an engine says any more: it has nothing left to do."""


class FrameSender:
    """Frames to the daemon, from any thread; raises DaemonGone."""

    def __init__(self, daemon: socket.socket) -> None:
        self._daemon = daemon
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        """Send one frame whole; blocks while the daemon does not read."""
        frame = encode_frame(message)
        try:
            with self._lock:
                self._daemon.sendall(frame)
        except OSError:
            raise DaemonGone from None


class EngineProcess:
    """Owns the process: loads one model, then hands commands to its threads until the daemon is gone."""

    def __init__(self, daemon: socket.socket) -> None:
        self._daemon = daemon
        self._sender = FrameSender(daemon)
        self._reader = FrameReader()
        self._jobs: Inbox[Job] = Inbox()
        self._commands = Commands()
        self._forgotten = Forgotten()
        # Mutable state: what serves, once the model is loaded.
        self._engine: Assembled | None = None

    def serve(self) -> int:
        """Read commands until the daemon says quit or closes; return the exit code."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.stack_size(_STACK)
        faulthandler.enable()
        try:
            return self._intake()
        except (DaemonGone, ConnectionError):
            # The daemon was killed: its end of the socket is gone.
            return 0
        except Exception as error:  # noqa: BLE001 - told as that of any other thread
            self._fail("intake", error)

    def _intake(self) -> int:
        poll = select.poll()
        poll.register(self._daemon, select.POLLIN)
        beat = time.monotonic()
        while True:
            timeout = max(0.0, beat + _HEARTBEAT_S - time.monotonic())
            if poll.poll(timeout * 1000):
                data = self._daemon.recv(_READ_BYTES)
                if not data or not self._handle(data):
                    return 0
            if time.monotonic() >= beat + _HEARTBEAT_S:
                beat = time.monotonic()
                self._sender.send(self._heartbeat())

    def _handle(self, data: bytes) -> bool:
        """Pass commands on; False at the end."""
        for body in self._reader.feed(data):
            message: ToEngine = decode_to_engine(body)
            match message:
                case Run() | RunTexts() | Park() | Resume() | Halt() | Share():
                    self._commands.put(message)
                case Prepare():
                    self._commands.announce(message.key)
                    self._jobs.put(message)
                case PrepareTexts() | Tokenize() | Detokenize():
                    self._jobs.put(message)
                case Forget():
                    self._forgotten.add(message.key)
                case Load():
                    self._start("loader", lambda load=message: self._load(load))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                case Quit():
                    return False
        return True

    def _load(self, load: Load) -> None:
        from car_daemon.engine.assembly import Assembly
        from car_daemon.engine.llama.model import ModelError

        send = self._sender.send
        try:
            parts = Assembly(load, self._jobs, self._forgotten, self._commands, send, in_steps(send)).assembled()
        except ModelError as error:
            send(LoadFailed(str(error)))
            return
        self._engine = parts
        self._start("tokenizer", parts.preparer.run)
        if parts.encoder is not None:
            self._start("encoder", parts.encoder.run)
        send(parts.ready)
        # What is here now stays: looking through it again would only make a step late.
        gc.collect()
        gc.freeze()
        parts.loop.run()

    def _start(self, name: str, work: Callable[[], None]) -> None:
        """Run work in a thread; a failure of any thread ends the process."""

        def run() -> None:
            try:
                work()
            except DaemonGone:
                os._exit(0)
            except BaseException as error:  # noqa: BLE001 - never a live process with a dead thread
                self._fail(name, error)

        threading.Thread(target=run, name=name, daemon=True).start()

    def _fail(self, name: str, error: BaseException) -> NoReturn:
        """End the process; the daemon hears why where it can be told."""
        try:
            self._sender.send(Warned("engine.failed", {"thread": name, "fault": named(error)}))
        finally:
            os._exit(1)

    def _heartbeat(self) -> Heartbeat:
        if self._engine is None:
            return Heartbeat(0, 0.0, {})
        self._engine.curve_check.look()
        pulse = self._engine.loop.pulse
        started = pulse.step_started
        age = 0.0 if started is None else (time.perf_counter() - started) * 1000
        return Heartbeat(pulse.step, age, self._engine.loop.counters)


def in_steps(send: Callable[[FromEngine], None]) -> Callable[[float], None]:
    """Return what takes the loaded share of a model, and sends it where it grew by a step or came to its end."""
    told = 0.0

    def take(done: float) -> None:
        nonlocal told
        if done > told and done >= min(1.0, told + _PROGRESS_STEP):
            told = done
            send(Loading(done))

    return take
