"""The confinement of an engine: little of the daemon's environment, few files, no network, bounded memory.

The kernel's sandboxes are optional: an engine is confined as far as its kernel supports it, and reports how far.
"""

import os
import resource
import site
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from car_base.capacity.kept_file import KeptFile
from car_base.host import kernel_sandbox
from car_base.host.devices import CPU
from car_base.host.files import MOST_BYTES, with_parts
from car_base.host.kernel_sandbox import READ, REWRITE, USE_DEVICE, WRITE, Access, AllowedPaths, PathRule
from car_base.host.memory import lower_limit
from car_base.ipc.frames import Load

# Of a thread of Python, virtual until it is used: regular expressions of some pre-tokenizers recurse with the text, and
# the grammar compiler with its rules.
STACK_BYTES = 1 << 30
# A thread of the C library has a stack and an arena of its own.
_THREAD_BYTES = 72 << 20
# llama.cpp's threads for generations, embeddings and images, and a few of Python's.
_POOLS, _OTHER_THREADS = 3, 8


class Used(NamedTuple):
    """Private writable and virtual bytes of a process."""

    data: int
    virtual: int


def limits_of(used: Used, *, later: int, margin: int, threads: int) -> Used:
    """Return the limits: what is used, what ordinary work adds later, and the margin.

    The margin is twice as large for virtual memory, because allocators and drivers reserve more than they use.
    """
    return Used(
        used.data + later + margin,
        used.virtual + later + 2 * margin + (_POOLS * threads + _OTHER_THREADS) * _THREAD_BYTES,
    )


def limit_memory(load: Load, *, later: int, threads: int) -> Used | None:
    """Limit this process to what it uses now and a margin; return the limits, None if there are none.

    A GPU's driver maps more than the machine has, so there is no limit with one.
    """
    margin = load.margin_bytes
    on_gpu = load.device != CPU or load.gpu_layers != 0
    if margin is None or on_gpu or load.sandbox == "off" or sys.platform != "linux":
        return None
    limits = limits_of(_used(), later=later, margin=margin, threads=threads)
    return Used(lower_limit(resource.RLIMIT_DATA, limits.data), lower_limit(resource.RLIMIT_AS, limits.virtual))


def _used() -> Used:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    values = dict(line.split(":", 1) for line in status.splitlines())
    # Each is a number and " kB".
    return Used(*(int(values[name].split()[0]) * 1024 for name in ("VmData", "VmSize")))


# The caches of a GPU driver may have files of this size.
_DRIVER_FILE_BYTES = 1 << 30
# As many as systems give a process by default, and the parts of a model, which are open together.
_DESCRIPTORS = 1024
# More threads than all engines start; the limit counts all threads of the user, whose programs come and go.
_MORE_THREADS = 4096
# Libraries with their caches and data, Python, time zones.
_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/run/opengl-driver"),
    *("/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"),
    *("/etc/OpenCL", "/etc/vulkan", "/etc/nvidia", "/etc/alternatives"),
    *("/dev/random", "/dev/urandom", "/dev/zero"),
)
# What drivers and llama.cpp read about the machine.
_MACHINE = ("/proc", "/sys")
# Variables that point the binding at other builds of llama.cpp's libraries.
_LIBRARIES = ("LLAMA_CPP_LIB_PATH", "MTMD_CPP_LIB")
# Variables that have threads bound to cores.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_MPS = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's own default
_DRIVER_CACHES = (".nv", ".cache/mesa_shader_cache", ".cache/nvidia", ".cache/AMD")


def limit_resources(load: Load) -> None:
    """Bound the size of files, and the numbers of descriptors and threads."""
    driver = _uses_gpu(load)
    lower_limit(resource.RLIMIT_FSIZE, _DRIVER_FILE_BYTES if driver else MOST_BYTES)
    if not driver:
        # Pipes of more descriptors would be memory that no limit counts.
        lower_limit(resource.RLIMIT_NOFILE, _DESCRIPTORS + len(list(files_of(load))))
    try:
        # The fourth field is the number of threads that run and of all, also of users in other containers.
        running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[2]
        lower_limit(resource.RLIMIT_NPROC, int(running) + _MORE_THREADS)
    except (OSError, ValueError, IndexError, AttributeError):
        return


def confine(load: Load, env: Mapping[str, str]) -> list[str]:
    """Confine the process to the files of a load, before its first thread; return the means in force.

    The filter of system calls is whole, but for what the driver of a GPU needs while it starts.
    """
    if load.sandbox == "off":
        return []
    limit_resources(load)
    found = []
    if kernel_sandbox.hide_memory():
        found.append("not dumpable")
    if not kernel_sandbox.give_up_privileges():
        return found
    found.append("no new privileges")
    if kernel_sandbox.drop_capabilities():
        found.append("few capabilities")
    if (measured := _measurements_of(load)) is not None:
        # A rule needs a file that exists; what it keeps is measured later.
        measured.make()
    if abi := kernel_sandbox.restrict_files(rules_of(load, env)):
        found.append(f"landlock {abi}")
    if kernel_sandbox.filter_system_calls(_always_allowed(load, env) | _allowed_to_start(load, env)):
        found.append("seccomp")
    return found


def confine_loaded(load: Load, env: Mapping[str, str]) -> None:
    """Refuse all threads what the driver of a GPU needed, once it started and the model is loaded."""
    if load.sandbox != "off" and _allowed_to_start(load, env):
        kernel_sandbox.filter_system_calls(_always_allowed(load, env))


def confine_child() -> None:
    """Confine a child: it reads Python's files, libraries and time zones, and writes to its socket alone."""
    kernel_sandbox.hide_memory()
    if kernel_sandbox.give_up_privileges():
        kernel_sandbox.drop_capabilities()
        kernel_sandbox.restrict_files(PathRule(path, READ) for path in (*_SYSTEM, *_python_files()))
        kernel_sandbox.filter_system_calls()


def _always_allowed(load: Load, env: Mapping[str, str]) -> AllowedPaths:
    allowed = AllowedPaths(0)
    if any(env.get(name) for name in _BINDING):
        # Each thread that the library of parallel loops starts later is bound, and the process ends if that fails.
        allowed |= AllowedPaths.CORES
    if _uses_gpu(load):
        # The memory of an engine on a GPU has no limit that a file in memory would pass.
        allowed |= AllowedPaths.MEMORY_FILES
    return allowed


def _allowed_to_start(load: Load, env: Mapping[str, str]) -> AllowedPaths:
    """Return what the driver of a GPU needs: CUDA makes Unix sockets, and connects to NVIDIA's MPS if that runs."""
    if not _uses_gpu(load):
        return AllowedPaths(0)
    return AllowedPaths.UNIX_SOCKETS | (AllowedPaths.CONNECTIONS if _shares_gpu(env) else AllowedPaths(0))


def _uses_gpu(load: Load) -> bool:
    return load.device != CPU or load.gpu_layers != 0


def _shares_gpu(env: Mapping[str, str]) -> bool:
    """Return whether MPS serves root's or this user's programs; a socket that another user planted does not count."""
    try:
        return os.lstat(Path(env.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS, "control")).st_uid in (0, os.geteuid())
    except OSError:
        return False


def rules_of(load: Load, env: Mapping[str, str]) -> Iterator[PathRule]:
    """Yield the files that an engine needs, and what it may do to them."""
    libraries = [*env.get("LD_LIBRARY_PATH", "").split(":"), *(env.get(name, "") for name in _LIBRARIES)]
    for path in [*_SYSTEM, *_MACHINE, *_python_files(), *libraries, *files_of(load)]:
        if path:
            yield PathRule(path, READ)
    yield PathRule("/dev/null", USE_DEVICE)
    if load.curves is not None and (measured := _measurements_of(load)) is not None:
        yield PathRule(load.curves, Access.READ_DIR)
        yield PathRule(str(measured.path), REWRITE)
    if load.cells is not None:
        yield PathRule(load.cells, READ)
    if _uses_gpu(load):
        yield PathRule("/dev", USE_DEVICE)
        # CUDA's driver opens the names of its threads as if they were new, and finds no GPU if it may not.
        yield PathRule("/proc/self", REWRITE | Access.READ_DIR)
        home = env.get("HOME") or "/"
        for folder in (*(f"{home}/{each}" for each in _DRIVER_CACHES), env.get("CUDA_CACHE_PATH", "")):
            if folder:
                yield PathRule(folder, WRITE)


def files_of(load: Load) -> Iterator[str]:
    """Yield the model's files, which llama.cpp finds by the form of their names, and the files beside them."""
    yield from map(str, with_parts(Path(load.path)))
    yield from load.adapters.values()
    yield from (path for path in (load.projector, load.chat_template) if path is not None)


def _measurements_of(load: Load) -> KeptFile | None:
    """Return the file that keeps what the load measures; None when nothing is kept."""
    return None if load.curves is None else KeptFile(Path(load.curves), load.path, load.device)


def _python_files() -> set[str]:
    """Return the interpreter's folders and all from which it imports."""
    return {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *site.getsitepackages(), *sys.path} - {
        ""
    }
