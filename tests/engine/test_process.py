"""An engine process: its limits, its reports of a load, and its end with its daemon."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from car_base.ipc.codec import FrameReader, decode_from_engine, encode_frame
from car_base.ipc.frames import FromEngine, Heartbeat, LoadFailed, Loading, Warned
from car_engine.process import DaemonGone, FrameSender, HeartbeatTimer, in_steps
from tests.engine.real_process import LOAD, PATIENCE_S, started

YIELD = """
import resource, sys
from pathlib import Path
from car_engine.process import yield_to_others
yield_to_others(Path(sys.argv[1]))
print(resource.getrlimit(resource.RLIMIT_CORE))
"""


@pytest.mark.parametrize(("before", "after"), [("0", "500"), ("-300", "200"), ("700", "1000")])
def test_an_engine_leaves_no_core_and_goes_first_where_memory_runs_out(tmp_path: Path, before: str, after: str) -> None:
    score = tmp_path / "oom_score_adj"
    score.write_text(before)
    done = subprocess.run([sys.executable, "-c", YIELD, score], capture_output=True, text=True, check=True)
    assert (done.stdout, score.read_text()) == ("(0, 0)\n", after)


def test_where_no_such_score_exists_it_does_without(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", YIELD, tmp_path / "none"], check=True)


def test_a_frame_that_the_daemon_cannot_read_raises_daemon_gone() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        with pytest.raises(DaemonGone):
            FrameSender(theirs).send(Heartbeat(0, 0.0, {}))


def test_an_engine_whose_daemon_goes_while_it_loads_ends_silently() -> None:
    with started("-m", "car_engine") as (ours, engine):
        ours.sendall(encode_frame(LOAD))
        # The first frame arrives during the load.
        assert ours.recv(1)
        ours.close()
        _, said = engine.communicate(timeout=PATIENCE_S)
    assert (engine.returncode, said) == (0, b"")


def test_a_llama_cpp_that_cannot_be_loaded_fails_the_load_with_the_reason_and_the_command_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libllama.so").write_text("not a library")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    with started("-m", "car_engine") as (ours, engine):
        ours.sendall(encode_frame(LOAD))
        [failed] = [decode_from_engine(body) for body in FrameReader().feed(ours.recv(4096))]
        ours.close()
        assert engine.wait(PATIENCE_S) == 0
    assert isinstance(failed, LoadFailed)
    assert failed.reason.startswith("llama.cpp does not start (Failed to load shared library")
    assert failed.reason.endswith("libllama.so: file too short): run `card --check`, which has what to do")


FAILING = """
import os, socket, sys
from car_engine.process import EngineProcess
os.close(2)
engine = EngineProcess(socket.socket(fileno=int(sys.argv[1])), socket.socketpair()[0])
def fail():
    raise MemoryError("of a prompt")
engine._start("loop", fail) if sys.argv[2] == "thread" else setattr(engine, "_intake", fail)
engine.serve()
"""


@pytest.mark.parametrize("where", ["thread", "intake"])
def test_a_defect_of_any_thread_ends_the_process_and_reports_its_place(where: str) -> None:
    with started("-c", FAILING, arguments=(where,)) as (ours, engine):
        said = b"".join(iter(lambda: ours.recv(4096), b""))
        assert engine.wait(PATIENCE_S) == 1
    [warned] = [decode_from_engine(body) for body in FrameReader().feed(said)]
    thread = "loop" if where == "thread" else "intake"
    assert warned == Warned("engine.failed", {"thread": thread, "fault": "MemoryError at __main__:7"})


@pytest.mark.parametrize("shares", [[0.0, 0.02, 0.5, 0.52, 0.9927, 1.0, 1.0], [0.5, 0.9927, 1.0]])
def test_a_load_is_reported_in_steps_and_to_its_end(shares: list[float]) -> None:
    sent: list[FromEngine] = []
    report = in_steps(sent.append)
    for share in shares:
        report(share)
    assert sent == [Loading(0.5), Loading(0.9927), Loading(1.0)]


def test_a_heartbeat_is_due_every_second_however_often_commands_come() -> None:
    beats = HeartbeatTimer(0.0)
    assert [now for now in (0.5, 0.9, 1.0, 1.5, 2.5, 3.0, 3.5) if beats.due(now)] == [1.0, 2.5, 3.5]
    assert beats.wait_s(4.0) == 0.5
    assert beats.wait_s(9.0) == 0.0


def test_what_a_stopped_process_was_at_counts_from_the_moment_at_which_it_goes_on() -> None:
    """Both its daemon and it are stopped with a container or a machine: its step would look as if it never ended."""
    beats = HeartbeatTimer(0.0)
    for now in (1.0, 2.5, 5.5):
        assert beats.due(now)
        assert beats.runs_since == 0.0
    assert beats.due(20.0)
    assert beats.runs_since == 20.0
    assert beats.due(21.0)
    assert beats.runs_since == 20.0


def test_an_engine_imports_the_low_level_binding_alone() -> None:
    program = "import car_engine.assembly, sys; print({'llama_cpp.llama', 'jinja2'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"set()\n"
