"""The confinement of an engine: what each of its threads tries in vain, and what ordinary work may do."""

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from car_base.capacity.kept_file import KeptFile
from car_base.host.kernel_sandbox import READ, REWRITE, WRITE, Access, landlock_abi
from car_base.ipc.codec import FrameReader, decode_from_engine, encode_frame
from car_base.ipc.frames import Load, Quit, Ready
from car_base.ipc.spawning import passed_on
from car_engine.confinement import confine, rules_of
from tests.engine.real_process import LOAD, PATIENCE_S, started

needs_landlock = pytest.mark.skipif(landlock_abi() == 0, reason="this kernel has no Landlock (Linux 5.13)")
needs_seccomp = pytest.mark.skipif(
    not Path("/proc/sys/kernel/seccomp").exists() or platform.machine() not in ("x86_64", "aarch64"),
    reason="seccomp filters are written for Linux on x86-64 and ARM64",
)
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines an engine")
_SIGNAL_ABI = 6

# A real engine. Its loader tries what is forbidden before it opens the file of the model, its tokenizer, its loop and
# at last its intake in place of their work.
PROBE = """
import ctypes, fcntl, json, os, resource, signal, socket, sys, threading
from pathlib import Path
from car_engine.child_server import start_child_server
children = start_child_server([int(sys.argv[1])])
from msgspec import structs
from car_engine.backend import ggml_backend
from car_engine.process import EngineProcess
from car_engine.prompt.preparer import TokenizerThread
from car_engine.runner.loop import EngineLoop

secret, written, parent, numbers = sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5])
listening, another = sys.argv[7:9]
libc = ctypes.CDLL(None, use_errno=True)
mine = os.open(written + "-before", os.O_CREAT | os.O_RDWR)

def call(number):
    ctypes.set_errno(0)
    if libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6) == 0 or not ctypes.get_errno():
        return None
    raise OSError(ctypes.get_errno(), "")

def fork():
    if os.fork() == 0:
        os._exit(0)

attempts = {
    "read": lambda: open(secret, "rb").close(),
    "environment": lambda: open(f"/proc/{parent}/environ", "rb").read(),
    "list": lambda: os.listdir(Path(secret).parent),
    "create": lambda: open(written, "wb").close(),
    "remove": lambda: os.unlink(secret),
    "socket": lambda: socket.socket(socket.AF_UNIX).close(),
    "tcp": lambda: socket.socket(socket.AF_INET).close(),
    "udp": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close(),
    "netlink": lambda: socket.socket(16, socket.SOCK_RAW).close(),
    "vsock": lambda: socket.socket(40, socket.SOCK_STREAM).close(),
    "datagrams": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "socket by its path": lambda: socket.socket(socket.AF_UNIX).connect(listening),
    "memory file": lambda: os.close(os.memfd_create("a")),
    "signal": lambda: os.kill(parent, 0),
    "limit": lambda: resource.prlimit(parent, resource.RLIMIT_CORE, (0, 0)),
    "slow down": lambda: os.setpriority(os.PRIO_PROCESS, parent, 10),
    "idle": lambda: os.sched_setscheduler(parent, os.SCHED_IDLE, os.sched_param(0)),
    "bind": lambda: os.sched_setaffinity(parent, os.sched_getaffinity(parent)),
    "signal of a descriptor": lambda: fcntl.fcntl(mine, fcntl.F_SETOWN, parent),
    "signal of a group": lambda: fcntl.fcntl(mine, 15, bytes(8)),
    "signal of a socket": lambda: fcntl.ioctl(mine, 0x8901, bytes(4)),
    "key of a terminal": lambda: fcntl.ioctl(mine, 0x5412, b"a"),
    "mode": lambda: os.chmod(secret, 0o777),
    "mode of a model": lambda: os.fchmod(os.open(sys.executable, os.O_RDONLY), 0o755),
    "owner": lambda: os.chown(secret, -1, -1),
    "time": lambda: os.utime(secret),
    "attribute": lambda: os.setxattr(secret, "user.a", b"a"),
    "change of another": lambda: open(another, "ab").close(),
    "read of another": lambda: open(another, "rb").close(),
    "removal of another": lambda: os.unlink(another),
    "new file": lambda: open(another + "-new", "wb").close(),
    "unnamed file": lambda: os.close(os.open(Path(another).parent, os.O_TMPFILE | os.O_RDWR)),
    "link": lambda: os.link(another, another + "-link"),
    "rename": lambda: os.rename(another, another + "-renamed"),
    "length": lambda: os.truncate(another, 1 << 20),
    "new folder": lambda: os.mkdir(another + "-folder"),
    "name of a thread": lambda: open(f"/proc/self/task/{threading.get_native_id()}/comm", "wb").close(),
    "fork": fork,
    "execute": lambda: os.execv("/bin/true", ["true"]),
    **{name: lambda number=number: call(number) for name, number in numbers.items()},
}
attempts = {name: attempts[name] for name in json.loads(sys.argv[6]) or attempts}
results = {}

def attempt(thread):
    results[thread] = {}
    for name, what in attempts.items():
        try:
            what()
            results[thread][name] = 0
        except OSError as error:
            results[thread][name] = error.errno

tried = threading.Barrier(3)

def probe(thread):
    attempt(thread)
    tried.wait(120)
    threading.Event().wait()

TokenizerThread.run = lambda self: probe("tokenizer")
EngineLoop.run = lambda self: probe("loop")

def backend():
    real = ggml_backend()

    def open_model(load, *arguments):
        attempt("loader")
        return real.open_model(structs.replace(load, device="cpu", gpu_layers=0), *arguments)

    return real._replace(open_model=open_model)

engine = EngineProcess(socket.socket(fileno=int(sys.argv[1])), children, backend)
code = engine.serve()
tried.wait(120)
attempt("intake")
own = {
    "signal": lambda: os.kill(os.getpid(), 0),
    "thread": lambda: signal.pthread_kill(threading.get_ident(), 0),
    "limit": lambda: resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0)),
    "time": lambda: os.utime(mine),
    "bind": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "flags": lambda: fcntl.fcntl(mine, fcntl.F_SETFL, fcntl.fcntl(mine, fcntl.F_GETFL)),
}
results["own"] = []
for name, act in own.items():
    try:
        act()
        results["own"].append(name)
    except OSError:
        pass
results["dumpable"] = libc.prctl(3, 0, 0, 0, 0)
open_files = [fd for fd in range(3, 1024) if os.path.exists(f"/proc/self/fd/{fd}")]
results["inheritable"] = [os.readlink(f"/proc/self/fd/{fd}") for fd in open_files if os.get_inheritable(fd)]
statuses = [Path(f"/proc/self/task/{task}/status").read_text() for task in os.listdir("/proc/self/task")]
results["threads"] = [dict(line.split(":\\t") for line in text.splitlines() if ":\\t" in line) for text in statuses]
print(json.dumps(results), flush=True)
os._exit(code)
"""
# System calls that are forbidden, by their numbers.
NUMBERS = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "io_uring_setup": 425, "keyctl": 250, "userfaultfd": 323, "bpf": 321,
        "mount": 165, "unshare": 272, "execveat": 322, "clone3": 435, "pidfd_getfd": 438,
        "inotify_add_watch": 254, "pidfd_send_signal": 424, "tkill": 200, "shmget": 29, "shmat": 30, "semget": 64,
        "msgget": 68, "mq_open": 240, "migrate_pages": 256, "process_mrelease": 448,
        "memfd_secret": 447, "vmsplice": 278,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "io_uring_setup": 425, "keyctl": 219, "userfaultfd": 282, "bpf": 280,
        "mount": 40, "unshare": 97, "execveat": 281, "clone3": 435, "pidfd_getfd": 438,
        "inotify_add_watch": 27, "pidfd_send_signal": 424, "tkill": 130, "shmget": 194, "shmat": 196, "semget": 190,
        "msgget": 186, "mq_open": 180, "migrate_pages": 238, "process_mrelease": 448,
        "memfd_secret": 447, "vmsplice": 75,
    },
}  # fmt: skip
SOCKETS = ("socket", "tcp", "udp", "netlink", "vsock", "datagrams", "socket by its path")
CHANGES = (
    "change of another",
    "removal of another",
    "new file",
    "new folder",
    "unnamed file",
    "link",
    "rename",
    "length",
)
THREADS = ("loader", "intake", "tokenizer", "loop")


class Probed:
    """A real engine that tried what is forbidden, or only some of it."""

    def __init__(self, folder: Path, load: Load, *attempts: str, another: Path | None = None) -> None:
        secret = folder / "secret"
        secret.write_text("secret")
        numbers = json.dumps(NUMBERS.get(platform.machine(), {}))
        listening = folder / "listening"
        arguments = (str(secret), str(folder / "written"), str(os.getpid()), numbers, json.dumps(attempts))
        with (
            socket.socket(socket.AF_UNIX) as listener,
            started("-c", PROBE, arguments=(*arguments, str(listening), str(another or folder))) as probe,
        ):
            ours, engine = probe
            listener.bind(str(listening))
            listener.listen()
            ours.sendall(encode_frame(load))
            reader, self.ready = FrameReader(), None
            while self.ready is None:
                frames = [decode_from_engine(body) for body in reader.feed(ours.recv(1 << 16))]
                self.ready = next((frame for frame in frames if isinstance(frame, Ready)), None)
            ours.sendall(encode_frame(Quit()))
            out, said = engine.communicate(timeout=PATIENCE_S)
        assert out, said
        self.results = json.loads(out)

    def refused(self, attempt: str) -> bool:
        """Return whether no thread could do it."""
        return all(self.results[thread][attempt] in (1, 13, 38) for thread in THREADS)


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Probed:
    """An engine that is confined as far as this kernel can."""
    return Probed(tmp_path_factory.mktemp("confined"), LOAD)


@needs_landlock
@pytest.mark.parametrize("attempt", ["read", "list", "create", "remove", "environment"])
def test_no_thread_of_an_engine_reaches_files_that_are_not_its_models(probed: Probed, attempt: str) -> None:
    assert probed.refused(attempt)


@needs_landlock
def test_an_engine_writes_its_own_curve_and_neither_that_of_another_model_nor_other_files(tmp_path: Path) -> None:
    curves = tmp_path / "curves"
    curves.mkdir(0o700)
    another = curves / "b.json"
    another.write_text("{}")
    tried = ("read of another", *CHANGES)
    probed = Probed(tmp_path, structs.replace(LOAD, curves=str(curves)), *tried, another=another)
    assert [name for name in tried if not probed.refused(name)] == []
    own = KeptFile(curves, LOAD.path, "cpu").path
    assert own is not None
    assert sorted(curves.iterdir()) == sorted([another, own])
    assert another.read_text() == "{}"
    assert b"decode" in own.read_bytes()


@needs_landlock
def test_an_engine_reads_its_stored_cells_and_changes_nothing_in_their_folder(tmp_path: Path) -> None:
    cells = tmp_path / "cells"
    cells.mkdir(0o700)
    file = cells / "1000-a-b.cells"
    file.write_bytes(b"cells")
    load = structs.replace(LOAD, cells=str(cells), cells_bytes=1 << 30)
    probed = Probed(tmp_path, load, "read of another", *CHANGES, another=file)
    assert [name for name in CHANGES if not probed.refused(name)] == []
    assert {probed.results[thread]["read of another"] for thread in THREADS} == {0}
    assert [(each.name, each.read_bytes()) for each in cells.iterdir()] == [(file.name, b"cells")]


@pytest.mark.skipif(landlock_abi() < _SIGNAL_ABI, reason="this kernel's Landlock does not bound signals (Linux 6.12)")
def test_no_thread_of_an_engine_sends_signals_to_others(probed: Probed) -> None:
    assert probed.refused("signal")


@needs_seccomp
@pytest.mark.parametrize("attempt", ["signal", "limit", "slow down", "idle", "bind"])
def test_no_thread_of_an_engine_changes_another_process(probed: Probed, attempt: str) -> None:
    assert probed.refused(attempt)


@needs_seccomp
@pytest.mark.parametrize(
    "attempt", ["signal of a descriptor", "signal of a group", "signal of a socket", "key of a terminal"]
)
def test_no_thread_of_an_engine_has_the_kernel_send_signals_or_press_keys(probed: Probed, attempt: str) -> None:
    assert probed.refused(attempt)


@needs_seccomp
@pytest.mark.parametrize("attempt", ["mode", "mode of a model", "owner", "time", "attribute"])
def test_no_thread_of_an_engine_changes_the_mode_owner_or_time_of_a_file(probed: Probed, attempt: str) -> None:
    assert probed.refused(attempt)


@needs_seccomp
def test_an_engine_may_signal_and_limit_itself_and_set_the_times_of_its_own_files(probed: Probed) -> None:
    assert probed.results["own"] == ["signal", "thread", "limit", "time", "bind", "flags"]


@needs_seccomp
@pytest.mark.parametrize("attempt", [*SOCKETS, "fork", "execute", *NUMBERS["x86_64"]])
def test_no_thread_of_an_engine_makes_a_system_call_that_reaches_beyond_it_from_before_its_file_is_read(
    probed: Probed, attempt: str
) -> None:
    assert probed.refused(attempt)


@needs_seccomp
@pytest.mark.parametrize("attempt", ["memory file", "memfd_secret", "vmsplice"])
def test_no_thread_of_an_engine_has_memory_that_no_limit_counts(probed: Probed, attempt: str) -> None:
    assert probed.refused(attempt)


@needs_seccomp
def test_a_library_falls_back_from_the_clone_that_cannot_be_filtered(probed: Probed) -> None:
    assert [probed.results[thread]["clone3"] for thread in THREADS] == [38] * 4


@needs_linux
def test_every_thread_of_an_engine_is_confined(probed: Probed) -> None:
    threads = probed.results["threads"]
    assert len(threads) >= len(THREADS)
    assert {thread["NoNewPrivs"] for thread in threads} == {"1"}
    # At most CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_IPC_LOCK, also where the daemon is root's.
    assert {int(thread[kind], 16) & ~0x4006 for thread in threads for kind in ("CapEff", "CapPrm", "CapInh")} == {0}
    assert probed.results["dumpable"] == 0
    assert probed.ready is not None
    assert probed.ready.sandbox[:3] == ["not dumpable", "no new privileges", "few capabilities"]
    filtered = "seccomp" in probed.ready.sandbox
    assert {thread["Seccomp"] for thread in threads} == {"2" if filtered else "0"}


@needs_linux
def test_an_engine_passes_no_descriptor_on(probed: Probed) -> None:
    assert probed.results["inheritable"] == []


@needs_linux
def test_an_engine_without_a_sandbox_is_not_confined(tmp_path: Path) -> None:
    open_ = Probed(tmp_path, structs.replace(LOAD, sandbox="off"), "read", "socket", "fork")
    assert open_.ready is not None
    assert open_.ready.sandbox == []
    assert open_.results["dumpable"] == 1
    assert [open_.results[thread] for thread in THREADS] == [{"read": 0, "socket": 0, "fork": 0}] * 4


ON_GPU = structs.replace(LOAD, device="gpu0", gpu_layers=-1)


@needs_seccomp
def test_while_its_file_is_read_an_engine_on_a_gpu_has_the_sockets_of_a_driver_alone_and_none_afterwards(
    tmp_path: Path,
) -> None:
    tried = (*SOCKETS, "fork", "execute", "limit", "unshare", "io_uring_setup", "userfaultfd", "keyctl")
    loading = Probed(tmp_path, ON_GPU, *tried).results
    assert [name for name in tried if loading["loader"][name] == 0] == ["socket"]
    # As where there is no socket at that path.
    assert loading["loader"]["socket by its path"] == 2
    assert {loading[thread][name] for thread in THREADS[1:] for name in tried} <= {1, 13, 38}


@needs_seccomp
def test_an_engine_on_a_gpu_connects_while_its_file_is_read_where_mps_serves_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    (tmp_path / "control").touch()
    loading = Probed(tmp_path, ON_GPU, "socket by its path").results
    assert {thread: loading[thread]["socket by its path"] for thread in THREADS} == {
        **dict.fromkeys(THREADS, 1),
        "loader": 0,
    }


@needs_landlock
def test_an_engine_on_a_gpu_opens_the_names_of_its_threads_anew_as_cudas_driver_does(tmp_path: Path) -> None:
    named = Probed(tmp_path, ON_GPU, "name of a thread").results
    assert [named[thread]["name of a thread"] for thread in THREADS] == [0] * 4


LIMITED = """
import os, resource, sys
from car_engine.confinement import limit_resources
from tests.engine.real_process import LOAD
limit_resources(LOAD)
with open(sys.argv[1], "wb") as file:
    try:
        file.truncate(resource.getrlimit(resource.RLIMIT_FSIZE)[0] + 1)
    except OSError as error:
        print(error.errno)
print(resource.getrlimit(resource.RLIMIT_NPROC)[0] < 1_000_000)
print(resource.getrlimit(resource.RLIMIT_FSIZE)[0], resource.getrlimit(resource.RLIMIT_NOFILE)[1])
"""


@needs_linux
def test_an_engine_makes_no_large_files_nor_threads_and_descriptors_without_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "file"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "27\nTrue\n1048576 1025\n"


BOUND = """
import os
from car_engine.confinement import confine
from car_base.host.kernel_sandbox import drop_capabilities
from tests.engine.real_process import LOAD
drop_capabilities()  # because the cores of a process that has more of them are not its to set
reading, writing = os.pipe()
if (other := os.fork()) == 0:
    os.close(writing)
    os.read(reading, 1)  # until the process that forked it ends
    os._exit(0)
assert "seccomp" in confine(LOAD, os.environ)
os.sched_setaffinity(other, os.sched_getaffinity(0))
"""


@needs_seccomp
@pytest.mark.parametrize(("variables", "code"), [({}, 1), ({"OMP_PLACES": "cores"}, 0)])
def test_only_an_engine_whose_environment_binds_its_threads_sets_the_cores_of_others(
    variables: dict[str, str], code: int
) -> None:
    done = subprocess.run([sys.executable, "-c", BOUND], env=os.environ | variables, capture_output=True, text=True)
    assert (done.returncode, "PermissionError" in done.stderr) == (code, code == 1)


def test_an_engine_gets_no_key_or_token_of_the_environment() -> None:
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2", "LC_ALL": "C", "TMPDIR": "/tmp"}
    kept |= {"LLAMA_CPP_LIB_PATH": "/built", "MTMD_CPP_LIB": "/built"}
    secrets = {"HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "x", "SSH_AUTH_SOCK": "x", "NOTIFY_SOCKET": "x"}
    assert passed_on(kept | secrets) == kept


def test_an_engine_reads_all_files_of_its_model_and_writes_its_curves_alone(tmp_path: Path) -> None:
    load = structs.replace(
        LOAD,
        path=str(tmp_path / "m-00001-of-00003.gguf"),
        adapters={"a": "/adapters/a.gguf"},
        projector="/p.gguf",
        chat_template="/t.jinja",
        curves="/cache/curves",
        cells="/cache/cells/mine/cpu",
    )
    rules = {rule.path: rule.access for rule in rules_of(load, {"HOME": "/home/me", "LD_LIBRARY_PATH": "/cuda:"})}
    parts = [str(tmp_path / f"m-0000{number}-of-00003.gguf") for number in (1, 2, 3)]
    assert {rules[path] for path in (*parts, "/adapters/a.gguf", "/p.gguf", "/t.jinja", "/cuda")} == {READ}
    assert rules["/cache/cells/mine/cpu"] == READ, "the daemon writes the files of cells"
    assert WRITE not in rules.values(), "no engine on a CPU makes folders"
    curves = [str(KeptFile(Path("/cache/curves"), load.path, "cpu").path)]
    assert [path for path, access in rules.items() if access == REWRITE] == curves
    assert rules["/cache/curves"] == Access.READ_DIR
    assert not {"/", "/home", "/home/me", "/dev", "", str(tmp_path)} & rules.keys()


def test_an_engine_reads_the_build_of_llama_cpp_that_the_environment_names() -> None:
    built = {"LLAMA_CPP_LIB_PATH": "/built/llama", "MTMD_CPP_LIB": "/built/mtmd"}
    rules = {rule.path: rule.access for rule in rules_of(LOAD, {"HOME": "/home/me", **built})}
    assert {rules["/built/llama"], rules["/built/mtmd"]} == {READ}


def test_an_engine_on_a_gpu_uses_its_devices_and_its_drivers_caches() -> None:
    load = structs.replace(LOAD, device="gpu0", gpu_layers=-1)
    rules = {rule.path: rule.access for rule in rules_of(load, {"HOME": "/home/me"})}
    assert "/dev" in rules
    assert rules["/home/me/.nv"] == WRITE


def test_a_load_without_a_sandbox_leaves_the_process_as_it_is() -> None:
    assert confine(structs.replace(LOAD, sandbox="off"), {}) == []
