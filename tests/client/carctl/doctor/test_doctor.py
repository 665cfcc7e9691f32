"""`carctl doctor`: what it finds, and what it says to do about it."""

import getpass
import os
import socket
import subprocess
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from car_client.carctl.doctor import command, daemon_checks, environment_checks
from car_client.carctl.doctor.command import examine
from car_client.carctl.doctor.environment_checks import CheckResult
from car_client.carctl.service.steps import Steps
from car_protocol.errors import RpcError
from tests.client.carctl.command import carctl
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import details, model

NO_GPU: tuple[str, ...] = ()


@pytest.fixture(autouse=True)
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a command in the place of `card`, whose own trial of llama.cpp takes a second."""
    command = tmp_path / "bin" / "card"
    command.parent.mkdir()
    command.touch(0o755)
    command.write_text("#!/bin/sh\necho card: llama.cpp decodes >&2\n")
    monkeypatch.setattr("sys.argv", [str(command.with_name("carctl"))])
    return command


def lines(done: "subprocess.CompletedProcess[bytes]") -> dict[str, str]:
    """Return the last level of each check."""
    return {line.split()[1]: line.split()[0] for line in done.stdout.decode().splitlines()}


def found(daemon: FakeDaemon, what: str, gpus: tuple[str, ...] = NO_GPU) -> list[CheckResult]:
    """Return what is found of one kind."""
    return [result for result in daemon_checks.check_daemon(daemon.path, gpus) if result.subject == what]


def test_all_is_well_with_a_daemon_that_serves(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "doctor")
    assert (done.returncode, done.stderr) == (0, b"")
    levels = lines(done)
    of_the_daemon = {"version", "model", "memory", "device", "sandbox", "limits", "context"}
    assert set(levels) == {"socket", "folder", "daemon", *of_the_daemon, "binding", "service"}
    assert {level for what, level in levels.items() if what not in ("service", "device")} == {"ok"}


def test_without_a_daemon_the_doctor_says_how_to_start_one(path: Path) -> None:
    done = carctl("--socket", path, "doctor")
    assert done.returncode == 1
    assert f"fail socket      {path}: no such file or directory; start it with `carctl up`".encode() in done.stdout
    assert b"checks failed" in done.stderr


def test_a_socket_on_which_nobody_listens_is_found(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(path))
    done = carctl("--socket", path, "doctor")
    assert done.returncode == 1
    assert b"fail daemon      no daemon answers: connection refused" in done.stdout


def test_a_file_in_the_sockets_place_is_found(path: Path) -> None:
    path.touch()
    assert environment_checks.socket(path).level == "fail"


def test_a_folder_that_others_may_write_to_is_found(path: Path) -> None:
    path.parent.chmod(0o777)
    (folder,) = environment_checks.permissions(path)
    assert (folder.level, folder.advice) == ("fail", f"chmod go-w {path.parent}")
    path.parent.chmod(0o1777)
    (folder,) = environment_checks.permissions(path)
    assert folder.level == "ok"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_daemon_of_another_user_is_not_to_be_trusted(path: Path) -> None:
    path.parent.chmod(0o1777)
    os.seteuid(65534)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen()
    finally:
        os.seteuid(0)
    with listener:
        assert environment_checks.peer(path) == CheckResult(
            "fail", "daemon", "user 65534 answers", "name your own socket with --socket"
        )


Change = Callable[[dict[str, Any]], Any]
CASES: list[tuple[Change, str, str, str]] = [
    (lambda s: s.update(version="0.0.9"), "version", "warn", "restart the daemon"),
    (lambda s: s.update(protocol="2"), "version", "fail", "upgrade the older one"),
    (lambda s: s["models"][0].update(state="failed", reason="no tensors"), "model", "fail", "complete GGUF"),
    (lambda s: s["models"][0].update(state="unloaded", size_bytes=None), "model", "fail", "correct its path"),
    (lambda s: s["memory"].update(pressure="critical"), "memory", "warn", "end other programs"),
    (lambda s: s["models"][0].update(state="loading", size_bytes=2**50), "memory", "warn", "does not fit"),
]


@pytest.mark.parametrize(("change", "what", "level", "advice"), CASES)
def test_each_ill_has_a_line_that_says_how_to_mend_it(
    daemon: FakeDaemon, change: Change, what: str, level: str, advice: str
) -> None:
    change(daemon.answers["daemon/status"])
    result = found(daemon, what)[0]
    assert result.level == level
    assert advice in result.advice


def test_a_reason_that_says_what_to_set_has_no_advice_about_the_file(daemon: FakeDaemon) -> None:
    reason = "the model lacks 9 MiB beside the 7 MiB that are free (2 on CUDA0): set a smaller context_tokens"
    daemon.answers["daemon/status"]["models"][0].update(state="failed", reason=reason)
    assert found(daemon, "model")[0] == CheckResult("fail", "model", f"guide, failed: {reason}")


def test_a_model_on_the_cpu_beside_a_gpu_is_worth_a_word(daemon: FakeDaemon) -> None:
    assert found(daemon, "device", ("/dev/null",))[0].level == "warn"
    assert found(daemon, "device")[0].level == "ok"


def test_a_model_on_the_cpu_because_a_gpu_is_full_needs_no_other_build(daemon: FakeDaemon) -> None:
    sizes = {"planned_bytes": 0, "taken_bytes": 0, "free_bytes": 0, "total_bytes": 8 << 30}
    daemon.answers["daemon/status"]["models"][0]["engines"][0]["devices"] = [{"name": "CUDA0", "layers": 0, **sizes}]
    (device,) = found(daemon, "device", ("/dev/null",))
    assert device.level == "warn"
    assert "CUDA0: 0 layers" in device.facts
    assert device.advice.startswith("unload other models")


def test_what_a_model_has_on_its_gpus_is_named_with_the_plan(daemon: FakeDaemon) -> None:
    gib = 1 << 30
    sizes = {"planned_bytes": 7 * gib, "taken_bytes": 6 * gib, "free_bytes": gib, "total_bytes": 8 * gib}
    model = daemon.answers["daemon/status"]["models"][0]
    model["device"] = "gpu"
    model["engines"][0]["devices"] = [{"name": "CUDA0", "layers": 33, **sizes}]
    model["engines"][0]["host_experts"] = 9
    (device,) = found(daemon, "device")
    told = (
        "CUDA0: 33 layers, 7168 MiB planned, 6144 MiB taken (-14.3%), 1024 MiB of 8192 MiB free"
        "; experts of 9 layers on the host"
    )
    assert device.facts == f"guide on gpu; {told}"
    model["engines"][0]["devices"][0]["pressure"] = "some"
    (device,) = found(daemon, "device")
    assert (device.level, device.facts) == ("warn", f"guide on gpu; {told}; pressure some on CUDA0")


@pytest.mark.parametrize("sandbox", [[], ["no new privileges", "landlock 7"], ["no new privileges", "seccomp"]])
def test_an_engine_that_is_not_confined_is_worth_a_word(daemon: FakeDaemon, sandbox: list[str]) -> None:
    assert found(daemon, "sandbox")[0].level == "ok"
    daemon.answers["daemon/status"]["models"][0]["engines"][0]["sandbox"] = sandbox
    (result,) = found(daemon, "sandbox")
    assert (result.level, result.facts) == ("warn", f"guide: {', '.join(sandbox) or 'none'}")


@pytest.mark.parametrize(("private_mib", "level"), [(4600, "ok"), (4610, "warn")])
def test_an_engine_that_has_nearly_all_memory_that_it_may_have_is_worth_a_word(
    daemon: FakeDaemon, private_mib: int, level: str
) -> None:
    memory = daemon.answers["daemon/status"]["models"][0]["engines"][0]["memory"]
    memory["private_bytes"] = private_mib * 1024**2
    (result,) = found(daemon, "limits")
    told = f"{private_mib} MiB of 5120 MiB of private memory, 6144 MiB of 12288 MiB of virtual memory"
    assert (result.level, result.facts) == (level, f"guide: {told}")
    assert ("raise engine_margin_bytes" in result.advice) == (level == "warn")
    daemon.answers["daemon/status"]["models"][0]["engines"][0]["memory"] = None
    assert found(daemon, "limits") == []


def test_memory_names_what_is_free_and_what_a_sequence_takes(daemon: FakeDaemon) -> None:
    (memory,) = found(daemon, "memory")
    assert memory.facts == "12288 MiB of 16384 MiB available, 32 MiB a sequence of guide"


def test_context_names_the_sequences_and_what_fits_by_their_length(daemon: FakeDaemon) -> None:
    (context,) = found(daemon, "context")
    assert context.level == "ok"
    assert context.facts == "guide: 4 × 2,048 tokens, trained for 131,072; fits 4 × 32,768 or 16 × 8,192"
    daemon.answers["models/show"] = {"model": model(), "why": "it is not a GGUF file"}
    (context,) = found(daemon, "context")
    assert (context.level, context.facts) == ("warn", "guide: it is not a GGUF file")
    daemon.answers["models/show"] = RpcError("internal_error")
    assert found(daemon, "context")[0].level == "warn"


@pytest.mark.parametrize(
    ("offers", "sequences", "fits"),
    [
        ([{"sequences": 2, "context_tokens": 8192}], 2, "; fits 2 × 8,192"),
        ([], 0, "; not one sequence fits now"),
        ([], None, ""),  # on a GPU
    ],
)
def test_context_names_what_fits_of_a_model_that_is_not_loaded(
    daemon: FakeDaemon, offers: list[dict[str, int]], sequences: int | None, fits: str
) -> None:
    status = daemon.answers["daemon/status"]
    loaded = status["models"][0]
    unloaded = loaded | {"name": "other", "state": "unloaded", "engines": [], "context_tokens": None}
    daemon.answers["daemon/status"] = status | {"models": [loaded, unloaded]}
    estimate = details()["estimate"] | {"offers": offers, "sequences": sequences}
    daemon.answers["models/show"] = details(estimate=estimate)
    _, context = found(daemon, "context")
    assert context.facts == f"other: unloaded, trained for 131,072{fits}"


def test_a_daemon_that_answers_with_an_error_is_found(daemon: FakeDaemon) -> None:
    daemon.answers["daemon/status"] = RpcError("draining")
    (result,) = daemon_checks.check_daemon(daemon.path)
    assert (result.level, result.subject) == ("fail", "answer")


def test_a_daemon_that_is_stuck_is_found(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stuck:
        stuck.bind(str(path))
        stuck.listen()
        (result,) = daemon_checks.check_daemon(path, timeout_s=0.05)
    assert (result.level, result.subject, result.facts) == ("fail", "answer", "no answer in 0.05 s")
    assert "restart the daemon" in result.advice


def test_every_check_is_told_before_the_next_begins(daemon: FakeDaemon) -> None:
    found = examine(Namespace(system=False, socket=daemon.path))
    assert [next(found).subject for _ in range(3)] == ["socket", "folder", "daemon"]
    assert daemon.calls == []
    assert next(found).subject == "version"


@contextmanager
def locked_out(folder: Path) -> Iterator[None]:
    """Be a user who may not enter a folder."""
    folder.chmod(0)
    if root := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)


def test_a_folder_that_this_user_may_not_enter_is_found(daemon: FakeDaemon) -> None:
    with locked_out(daemon.path.parent):
        found = list(examine(Namespace(system=False, socket=daemon.path)))
    assert found[0] == CheckResult(
        "fail",
        "socket",
        f"{daemon.path}: this user may not enter its folder",
        f"only user {getpass.getuser()} may connect; or start a daemon of your own on another socket: "
        "CAR_SOCKET=PATH carctl up",
    )
    assert [result.subject for result in found] == ["socket", "folder", "binding", "service"]


def test_what_may_not_be_looked_at_is_examined_where_nothing_else_is(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "usable_paths", lambda _: [Path("/none"), daemon.path])
    with locked_out(daemon.path.parent):
        assert str(daemon.path) in next(examine(Namespace(system=False, socket=None))).facts


@pytest.mark.parametrize(("code", "level"), [(0, "ok"), (3, "warn")])
def test_a_service_that_keeps_the_daemon_is_looked_for(code: int, level: str) -> None:
    assert environment_checks.service(Steps(lambda _command, _quiet: code), system=False).level == level


TRIALS = {
    "fits": ("echo card: llama.cpp decodes >&2", ["ok"]),
    "slow": ("echo card: llama.cpp decodes >&2; echo card: built without AVX2 >&2", ["ok", "warn"]),
    "crashes": ("echo card: llama.cpp crashes >&2; exit 69", ["fail"]),
    "is silent": ("exit 69", ["fail"]),
}


@pytest.mark.parametrize(("program", "levels"), TRIALS.values(), ids=list(TRIALS))
def test_the_trial_of_llama_cpp_has_a_line_for_each_finding(program: str, levels: list[str], card: Path) -> None:
    card.write_text(f"#!/bin/sh\n{program}\n")
    found = list(environment_checks.binding(needed=True))
    assert [result.level for result in found] == levels
    assert not any(result.facts.startswith("card: ") for result in found)


def test_a_llama_cpp_that_no_daemon_needs_is_no_failure(card: Path) -> None:
    card.write_text("#!/bin/sh\necho card: llama-cpp-python is not installed >&2; exit 69\n")
    (result,) = environment_checks.binding(needed=False)
    assert (result.level, result.facts) == ("warn", "llama-cpp-python is not installed")
