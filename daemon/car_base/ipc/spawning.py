"""The start of an engine process by the daemon or by a seat on another machine, and of any with a socket."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

# Twice the stacks of an engine's threads, as it writes them when it crashes.
_BURST = 16 * 1024
# Characters a second, by which a process adds less than 1 MiB an hour to a log.
_RATE = 256.0
_LONGEST = 1024
# Few, because a line is written with its name: beyond the burst a turn writes no more than so many names.
_READ_BYTES = 512
_PAUSE_S = 1.0


class LineRelay:
    """Reads the pipe of a process's standard error and passes each line to `write`, after the process's name.

    A process writes 16 KiB at once and 256 characters a second. Further text stays in its pipe, and is lost if the pipe
    is full or the process ends. A line of more than 1,024 bytes is several.
    """

    def __init__(
        self, descriptor: int, name: str, write: Callable[[str], object], loop: asyncio.AbstractEventLoop
    ) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._name = name
        self._write = write
        self._loop = loop
        self._begun = b""  # of a line that has no end yet
        self._left: float = _BURST  # characters that may be written now; less than none if a turn wrote more
        self._counted_at = loop.time()
        self._pause: asyncio.TimerHandle | None = None
        self._ended = False
        loop.add_reader(descriptor, self._read)

    def __repr__(self) -> str:
        return f"<LineRelay of {self._name} left={self._left:.0f}>"

    async def run(self, process: asyncio.subprocess.Process) -> None:
        """Pass lines on until the process is gone."""
        try:
            await process.wait()
        finally:
            self.end()

    def end(self) -> None:
        """Pass on what is in the pipe, as far as it may be written now, and close the descriptor."""
        if self._ended:
            return
        self._ended = True
        self._stop()
        self._refill()
        with contextlib.suppress(BlockingIOError):
            while self._left > 0 and (data := os.read(self._descriptor, _READ_BYTES)):
                self._take(data)
        if self._begun:
            self._pass_on(self._begun)
        os.close(self._descriptor)

    def _read(self) -> None:
        self._refill()
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            # The process closed it.
            self._loop.remove_reader(self._descriptor)
            return
        self._take(data)
        if self._left <= 0:
            self._loop.remove_reader(self._descriptor)
            self._pause = self._loop.call_later(max(_PAUSE_S, -self._left / _RATE), self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._descriptor, self._read)

    def _stop(self) -> None:
        self._loop.remove_reader(self._descriptor)
        if self._pause is not None:
            self._pause.cancel()

    def _refill(self) -> None:
        now = self._loop.time()
        self._left = min(_BURST, self._left + (now - self._counted_at) * _RATE)
        self._counted_at = now

    def _take(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self._pass_on(line)
        if len(self._begun) >= _LONGEST:
            self._pass_on(self._begun)
            self._begun = b""

    def _pass_on(self, line: bytes) -> None:
        text = f"{self._name}: {printable(line)}\n"
        self._left -= len(text)
        self._write(text)


def printable(line: bytes) -> str:
    """Return a line as text without anything that a terminal would act on or a log take for another line."""
    text = line.decode(errors="backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


# Names that an engine needs: of its drivers and libraries, and of where they keep their files.
_PASSED_ON = frozenset({"HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "XDG_CACHE_HOME"})
_PASSED_PREFIXES = (
    *("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "HSA_", "GGML_", "LLAMA_", "MTMD_", "GOMP_", "OMP_", "KMP_", "VK_", "SYCL_"),
    *("LC_", "PYTHON", "COVERAGE_", "COV_CORE_"),
)
_ENVIRONMENT = {
    # Because llama.cpp's assertion handler would fork a debugger before the process can die.
    "GGML_NO_BACKTRACE": "1",
    # Threads that wait for each other yield their core to other programs soon: docs/decisions/0019.
    "GOMP_SPINCOUNT": "2500",
    # An engine has numpy multiply nothing large, and its threads would start with it: half of the time of its import.
    "OPENBLAS_NUM_THREADS": "1",
    # The working directory, which may be any, is not a folder of modules.
    "PYTHONSAFEPATH": "1",
}


def passed_on(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an engine gets; others may be keys and tokens of the user."""
    return {name: value for name, value in env.items() if name in _PASSED_ON or name.startswith(_PASSED_PREFIXES)}


ENGINE = "car_engine"
_STANDARD_ERROR = 2
_RELAYS: set[asyncio.Task[None]] = set()  # of engines that run


def _write(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(_STANDARD_ERROR, text.encode(errors="backslashreplace"))


async def spawn_engine(
    theirs: socket.socket,
    write: Callable[[str], object] = _write,
    module: str = ENGINE,
    files: socket.socket | None = None,
) -> asyncio.subprocess.Process:
    """Spawn an engine process with one end of a socket, that of its files of cells, and no other descriptor of ours.

    Lines of its standard error are passed to `write`, bounded and printable, by default to that of this process. Raises
    OSError.
    """
    environment = _ENVIRONMENT | passed_on(os.environ)
    reading, writing = os.pipe()
    try:
        sockets = [theirs] if files is None else [theirs, files]
        process = await spawn((sys.executable, "-m", module), sockets, environment, stderr=writing)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    relay = LineRelay(reading, f"engine {process.pid}", write, asyncio.get_running_loop())
    task = asyncio.create_task(relay.run(process), name=f"standard error of {process.pid}")
    # The event loop has no reference of its own to a task that waits.
    _RELAYS.add(task)
    task.add_done_callback(_RELAYS.discard)
    return process


async def spawn(
    command: Sequence[str],
    sockets: Sequence[socket.socket],
    env: Mapping[str, str],
    *,
    stderr: int | None = None,
) -> asyncio.subprocess.Process:
    """Spawn a process; its last arguments are the descriptors of its ends of sockets. Raises OSError."""
    descriptors = [each.fileno() for each in sockets]
    return await asyncio.create_subprocess_exec(
        *command,
        *map(str, descriptors),
        pass_fds=descriptors,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=stderr,
        env=env,
        # Because the daemon alone handles a Ctrl-C in its terminal.
        start_new_session=True,
    )
