"""The end of the daemon: every request answered, nothing left behind."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.support import BIN, KNOWN, LONG, PATIENCE_S, Daemon, configured, endless, greedy, is_gone

pytestmark = pytest.mark.slow

Start = Callable[..., Daemon]


def test_shutdown_without_work_waits_for_no_limit(folder: Path, start: Start) -> None:
    daemon = start(*configured(folder, "[daemon]\ndrain_timeout_s = 86400.0\n"))
    engine = daemon.ready().engine()
    with daemon.connect() as client:
        client.result("infer", greedy(KNOWN[0]))
    assert daemon.stop() == 0
    assert is_gone(engine)
    assert not daemon.path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_signals_again_and_again_leave_the_exit_code(start: Start, number: signal.Signals) -> None:
    daemon = start()
    daemon.ready()
    deadline = time.monotonic() + PATIENCE_S
    while daemon.process.poll() is None and time.monotonic() < deadline:
        daemon.process.send_signal(number)
        time.sleep(0.002)  # nothing tells when the loop forgets its handlers
    assert daemon.process.wait(PATIENCE_S) == 0


def handles(pid: int, number: signal.Signals) -> bool:
    """Tell whether a process ignores or catches a signal."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in status if line.startswith(("SigIgn", "SigCgt"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells what a process ignores")
def test_a_hang_up_at_the_start_ends_nothing(start: Start) -> None:
    daemon = start()
    # The interpreter's own start is not the daemon's.
    while not handles(daemon.process.pid, signal.SIGHUP):
        time.sleep(0.001)  # nothing announces it
    for _ in range(100):
        daemon.process.send_signal(signal.SIGHUP)
        time.sleep(0.002)  # nothing tells how far the imports are
    daemon.ready()
    assert daemon.stop() == 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells what a process ignores")
@pytest.mark.parametrize("after_ms", [0, 10, 30, 60, 100, 200])
def test_an_interrupt_at_the_start_leaves_no_traceback(start: Start, after_ms: int) -> None:
    daemon = start()
    while not handles(daemon.process.pid, signal.SIGHUP):
        time.sleep(0.001)  # nothing announces it
    time.sleep(after_ms / 1000)  # nothing tells how far the imports are
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.process.wait(PATIENCE_S) in (0, -signal.SIGINT)
    assert "Traceback" not in daemon.log.read_text()


def test_signals_without_a_meaning_end_nothing(start: Start) -> None:
    daemon = start()
    engine = daemon.ready().engine()
    for number in (signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO):
        for pid in (daemon.process.pid, engine.pid):
            os.kill(pid, number)
        os.kill(engine.pid, signal.SIGQUIT)
        assert daemon.ready().engine() == engine, number
    assert daemon.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is kept by Linux")
@pytest.mark.parametrize(
    "limit", ["-v 20000", "-v 49000", "-v 60000", "-v 140000", "-v 250000", "-d 20000", "-v 350000", "-v 450000"]
)
def test_without_memory_to_start_the_daemon_says_so_in_a_line(folder: Path, limit: str) -> None:
    script = f'ulimit {limit}; exec "$0" --socket "$1"'
    done = subprocess.run(
        ["/bin/sh", "-c", script, BIN / "card", folder / "card.sock"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode in (69, 71)
    assert any(line.startswith("card: ") for line in done.stderr.splitlines())
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(shutil.which("unshare") is None or os.getuid() != 0, reason="only root can take /proc away")
def test_without_proc_the_daemon_ends_with_a_documented_code(folder: Path) -> None:
    script = 'mount -t tmpfs none /proc || exit 42; exec "$0" --socket "$1"'
    done = subprocess.run(
        ["unshare", "-m", "/bin/sh", "-c", script, BIN / "card", folder / "card.sock"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode == 42:
        pytest.skip("this container may not mount")
    assert done.returncode == 71
    assert "the system lacks what the daemon needs" in done.stderr


def test_sigterm_during_generation_finishes_what_runs_and_what_waits(start: Start) -> None:
    daemon = start("--capacity", "2")
    with daemon.connect() as client:
        requests = {client.send("infer_stream", greedy(known)): known for known in LONG + KNOWN[:10]}
        client.first_chunk(min(requests))
        daemon.process.send_signal(signal.SIGTERM)
        finished: dict[int, str] = {}
        while len(finished) < len(requests):
            message = client.receive()
            if "result" in message:
                finished[message["id"]] = message["result"]["finish_reason"]
        assert set(finished.values()) == {"stop"}
        with pytest.raises(EOFError):
            client.receive()
    assert daemon.stop() == 0


def test_what_comes_during_the_drain_is_refused(start: Start) -> None:
    daemon = start("--capacity", "2")
    with daemon.connect() as client, daemon.connect() as late:
        for request in [client.send("infer_stream", endless()) for _ in range(2)]:
            client.first_chunk(request)
        daemon.process.send_signal(signal.SIGTERM)
        while late.result("daemon/status")["state"] != "draining":
            pass
        assert late.reason("infer", greedy(KNOWN[0])) == "draining"
        late.result("inference/capacity")
    assert daemon.stop() == 0


def test_shutdown_with_live_requests_answers_them_five_seconds_before_the_drain_limit(
    folder: Path, start: Start
) -> None:
    daemon = start("--capacity", "2", *configured(folder, "[daemon]\ndrain_timeout_s = 5.0\n"))
    engine = daemon.ready().engine()
    with daemon.connect() as client:
        requests = [client.send("infer_stream", endless()) for _ in range(10)]
        client.first_chunk(requests[0])
        daemon.process.send_signal(signal.SIGTERM)
        # No time is left to finish the two that run.
        reasons = [client.response(request)["error"]["data"]["reason"] for request in requests]
    assert set(reasons) == {"draining"}
    assert daemon.stop() == 0
    assert is_gone(engine)


def test_a_second_signal_shortens_the_drain(start: Start) -> None:
    daemon = start("--capacity", "1")
    with daemon.connect() as client:
        requests = [client.send("infer_stream", endless()) for _ in range(30)]
        client.first_chunk(requests[0])
        daemon.process.send_signal(signal.SIGTERM)
        with daemon.connect() as other:
            while other.result("daemon/status")["state"] != "draining":
                pass
        daemon.process.send_signal(signal.SIGTERM)
        reasons = {client.response(request)["error"]["data"]["reason"] for request in requests[1:]}
    assert reasons == {"draining"}
    assert daemon.stop() == 0


def test_an_engine_without_its_daemon_ends_by_itself(start: Start) -> None:
    daemon = start()
    engine = daemon.ready().engine()
    with daemon.connect() as client:
        client.first_chunk(client.send("infer_stream", endless()))
        daemon.kill()
    started = time.monotonic()
    while not is_gone(engine):
        assert time.monotonic() - started < PATIENCE_S


def test_a_new_daemon_starts_on_the_socket_of_a_killed_one(start: Start) -> None:
    first = start()
    first.connect().close()
    first.kill()
    assert first.path.exists()
    second = start()
    with second.connect() as client:
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
    assert second.stop() == 0


def test_descriptors_return_to_where_they_were(start: Start) -> None:
    daemon = start("--capacity", "2")
    process = psutil.Process(daemon.process.pid)
    with daemon.connect() as client:
        client.result("infer", greedy(KNOWN[0]))
        before = process.num_fds()
        for _ in range(20):
            with daemon.connect() as leaver:
                leaver.first_chunk(leaver.send("infer_stream", endless()))
        daemon.wait_until_idle()
        # The daemon also opens files of /proc, each for a moment.
        while len(client.result("daemon/status")["connections"]) > 1 or process.num_fds() > before:
            pass
    assert daemon.stop() == 0


def test_a_lookup_that_an_engine_never_answers_is_answered_by_the_drain(start: Start) -> None:
    daemon = start("--capacity", "1")
    engine = daemon.ready().engine()
    with daemon.connect() as client:
        engine.suspend()
        lookup = client.send("tokenize", {"text": "Hi"})
        request = client.send("infer", greedy(KNOWN[0]))
        client.result("inference/capacity")
        daemon.process.send_signal(signal.SIGTERM)
        with daemon.connect() as other:
            while other.result("daemon/status")["state"] != "draining":
                pass
        daemon.process.send_signal(signal.SIGTERM)
        reasons = [client.response(one)["error"]["data"]["reason"] for one in (lookup, request)]
    assert reasons == ["draining", "draining"]
    assert daemon.stop() == 0
    assert is_gone(engine)


def test_an_engine_starts_again_also_with_a_thousand_connections(start: Start, folder: Path) -> None:
    config = configured(folder, "[daemon]\nmax_connections = 3000\nmax_connections_per_uid = 2000\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        daemon = start("--capacity", "1", *config).ready()
        clients = [daemon.connect() for _ in range(1100)]
        daemon.engine().kill()
        assert clients[-1].result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        for client in clients:
            client.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
