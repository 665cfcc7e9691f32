"""The engine process: its limits, the intake thread, and the tokenizer and loop threads that it feeds."""

import contextlib
import faulthandler
import gc
import os
import resource
import select
import socket
import stat
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from car_base.host.defects import dump_stacks_on_signal
from car_base.host.event_log import named
from car_base.host.files import WeightsOverwritten
from car_base.ipc.codec import FrameReader, decode_to_engine, encode_frame
from car_base.ipc.frames import (
    Detokenize,
    DeviceMemory,
    Devices,
    FindDevices,
    Forget,
    FromEngine,
    Halt,
    Heartbeat,
    Load,
    LoadFailed,
    Loading,
    Park,
    Prepare,
    PrepareDecision,
    PrepareTexts,
    Quit,
    Resume,
    Run,
    RunTexts,
    SetThreads,
    SpareMemory,
    ToEngine,
    Tokenize,
    Warned,
    Yield,
)
from car_base.ipc.ranges import line
from car_base.ipc.types import ENGINE_FAILED
from car_engine.backend import Backend, ggml_backend
from car_engine.child.children import Children
from car_engine.child.frames import ChildSettings
from car_engine.confinement import STACK_BYTES, confine, confine_loaded
from car_engine.prompt.job_progress import JobProgress
from car_engine.prompt.jobs import Jobs, QueuedJob
from car_engine.runner.idle_storing import StoreAll
from car_engine.runner.loop import Commands
from car_protocol.allocator import return_blocks

if TYPE_CHECKING:
    from car_engine.assembly import Assembled

_HEARTBEAT_S = 1.0
# A heartbeat that is later than this was stopped with its process or its machine, or had no core.
_STOPPED_S = 2.0
# The daemon kills an engine a second after it closed the link.
_STORE_S = 0.8
_READ_BYTES = 1 << 18
_PROGRESS_STEP = 0.05
# Added to the process's score, so that the kernel ends an engine before the daemon or programs of users.
_OOM_SCORE = 500
_MOST_OOM_SCORE = 1000
_STANDARD_ERROR = 2


def yield_to_others(oom_score: Path = Path("/proc/self/oom_score_adj")) -> None:
    """Give up core files, which may contain prompts, and survival when memory runs out (Linux).

    Standard error never blocks: libraries write there when they abort, and a full pipe would keep the process alive.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        score = int(oom_score.read_text()) + _OOM_SCORE
        oom_score.write_text(str(min(_MOST_OOM_SCORE, score)))
    if stat.S_ISFIFO(os.fstat(_STANDARD_ERROR).st_mode):
        os.set_blocking(_STANDARD_ERROR, False)


class DaemonGone(Exception):
    """The daemon does not read any more: the engine ends."""


class FrameSender:
    """Send frames to the daemon, from any thread; raises DaemonGone."""

    def __init__(self, daemon: socket.socket) -> None:
        self._daemon = daemon
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        """Send one whole frame; blocks while the daemon does not read."""
        frame = encode_frame(message)
        try:
            with self._lock:
                self._daemon.sendall(frame)
        except OSError:
            raise DaemonGone from None


class HeartbeatTimer:
    """When a heartbeat is due, and since when the process has run: a stopped machine makes no step or job older."""

    def __init__(self, now: float) -> None:
        self._sent = now
        self.runs_since = now

    def wait_s(self, now: float) -> float:
        """Return the seconds to the next heartbeat."""
        return max(0.0, self._sent + _HEARTBEAT_S - now)

    def due(self, now: float) -> bool:
        """Return whether a heartbeat has to be sent now."""
        late_s = now - self._sent - _HEARTBEAT_S
        if late_s > _STOPPED_S:
            self.runs_since = now
        if late_s >= 0:
            self._sent = now
        return late_s >= 0


class EngineProcess:
    """Load one model, then pass commands to the threads until the daemon quits or is gone.

    `children` is the socket of the server that forks its children.
    """

    def __init__(
        self,
        daemon: socket.socket,
        children: socket.socket,
        backend: Callable[[], Backend] = ggml_backend,
        files: socket.socket | None = None,
    ) -> None:
        # The launch passed them on, and they are for no other program.
        for each in (daemon, files):
            if each is not None:
                each.set_inheritable(False)
        self._children = Children(children)
        self._daemon = daemon
        self._files = files  # to the daemon, which writes the files of cells
        self._backend = backend
        self._sender = FrameSender(daemon)
        self._reader = FrameReader()
        self._jobs = Jobs()
        self._job = JobProgress(self._sender.send)
        self._commands = Commands()
        self._engine: Assembled | None = None  # None until the model is loaded.
        self._sandbox: list[str] = []  # the means in force since the load began

    def serve(self) -> int:
        """Read commands until the daemon quits or closes the socket; return the exit code."""
        threading.stack_size(STACK_BYTES)
        faulthandler.enable()
        dump_stacks_on_signal()
        try:
            code = self._intake()
        except (DaemonGone, ConnectionError):
            # The daemon was killed.
            code = 0
        except Exception as error:  # noqa: BLE001 - reported like the failure of any other thread
            self._fail("intake", error)
        self._store_cells()
        return code

    def _intake(self) -> int:
        poll = select.poll()
        poll.register(self._daemon, select.POLLIN)
        beats = HeartbeatTimer(time.perf_counter())
        while True:
            if poll.poll(beats.wait_s(time.perf_counter()) * 1000):
                data = self._daemon.recv(_READ_BYTES)
                if not data or not self._handle(data):
                    return 0
            if beats.due(time.perf_counter()):
                engine, job = self._engine, self._job.running(beats.runs_since)
                beat = Heartbeat(0, 0.0, {}, job) if engine is None else engine.heartbeat(job, beats.runs_since)
                self._sender.send(beat)

    def _handle(self, data: bytes) -> bool:
        """Pass commands to their threads; False after Quit."""
        for body in self._reader.feed(data):
            message: ToEngine = decode_to_engine(body)
            match message:
                case Run() | RunTexts() | Park() | Resume() | Halt() | Yield() | SetThreads() | SpareMemory():
                    self._commands.put(message)
                case Prepare() | PrepareDecision() | PrepareTexts() | Tokenize() | Detokenize():
                    if isinstance(message, Prepare | PrepareDecision):
                        self._commands.announce(message.key)
                    self._jobs.put(QueuedJob(message, len(body), (message.owner, *message.names)))
                case Forget():
                    self._jobs.forget(message.key)
                    self._commands.put(message)
                    self._commands.expected.drop(message.key)
                case FindDevices():
                    self._sender.send(Devices(self._found_devices()))
                case Load():
                    self._children.start(ChildSettings(sandbox=message.sandbox != "off"))
                    self._sandbox = confine(message, os.environ)
                    self._start("loader", partial(self._load, message))
                case Quit():
                    return False
        return True

    def _store_cells(self) -> None:
        """Let the loop store what is worth it, if it has nothing else to do; what takes longer is lost."""
        if self._engine is not None and self._engine.store is not None:
            end = StoreAll()
            self._commands.put(end)
            end.done.wait(_STORE_S)

    def _found_devices(self) -> list[DeviceMemory]:
        from car_engine.llama.devices import readings
        from car_engine.llama.library import silence

        silence()
        return readings(self._backend().read_devices())

    def _load(self, load: Load) -> None:
        send = self._sender.send
        try:
            import car_engine.llama.library  # noqa: F401 - the first module that loads llama.cpp
        except (OSError, RuntimeError) as error:
            send(LoadFailed(line(f"llama.cpp does not start ({error}): run `card --check`, which has what to do")))
            return
        from car_engine.assembly import EngineAssembly
        from car_engine.llama.model import ModelError
        from car_engine.loaded import LoadedModel

        # Saved cells are of every size; between blocks of the heap the room of freed cells would stay with the process.
        return_blocks()
        try:
            engine = EngineAssembly(
                load,
                self._jobs,
                self._job,
                self._commands,
                send,
                LoadedModel(load, send, in_steps(send), self._backend(), self._children),
                self._files,
            ).assembled()
        except ModelError as error:
            send(LoadFailed(line(str(error))))
            return
        confine_loaded(load, os.environ)
        engine.ready.sandbox[:] = [*self._sandbox, *engine.ready.sandbox]
        self._engine = engine
        self._start("tokenizer", engine.tokenizer.run)
        if engine.encoder is not None:
            self._start("encoder", engine.encoder.run)
        if engine.store is not None:
            self._start("store", engine.store.run)
        send(engine.ready)
        # The objects of the model live as long as the process, and scanning them again would delay a step.
        gc.collect()
        gc.freeze()
        engine.loop.run()

    def _start(self, name: str, work: Callable[[], None]) -> None:
        """Run work in a thread, whose failure ends the process."""

        def run() -> None:
            try:
                work()
            except DaemonGone:
                os._exit(0)
            except WeightsOverwritten:
                # The daemon, which has been told, ends the process: nothing of this engine is to blame.
                threading.Event().wait()
            except BaseException as error:  # noqa: BLE001 - the process must not outlive a thread
                self._fail(name, error)

        threading.Thread(target=run, name=name, daemon=True).start()

    def _fail(self, name: str, error: BaseException) -> NoReturn:
        """Report the failure to the daemon if it still reads, and end the process."""
        try:
            self._sender.send(Warned(ENGINE_FAILED, {"thread": name, "fault": named(error)}))
        finally:
            os._exit(1)


def in_steps(send: Callable[[FromEngine], None]) -> Callable[[float], None]:
    """Return a callback for the loaded fraction of a model, which sends it in steps and at the end."""
    sent = 0.0

    def report(done: float) -> None:
        nonlocal sent
        if done > sent and done >= min(1.0, sent + _PROGRESS_STEP):
            sent = done
            send(Loading(done))

    return report
