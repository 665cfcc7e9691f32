"""The start of an engine process by the daemon or by a seat on another machine, and of any with a socket."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from car_base.ipc.line_relay import LineRelay

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
