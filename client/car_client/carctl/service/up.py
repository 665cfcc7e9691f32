"""`carctl up` and `down`: the daemon as a service if that is installed, else in the background with a log file."""

import os
import select
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from car_client.carctl.access import is_denied
from car_client.carctl.failure import ANSWER_S
from car_client.carctl.models.command import load_with_bar
from car_client.carctl.models.suggestions import GUIDE, HINT
from car_client.carctl.service.command import manager_of
from car_client.carctl.service.installed import card_command
from car_client.carctl.service.steps import ServiceError, Steps
from car_client.carctl.terminal.text import one_line
from car_client.client import Client
from car_client.errors import CardError, DaemonUnavailable
from car_client.results import Status

_ATTEMPT_S = 0.5
_END_S = 60.0
_LAST_WORD_S = 5.0
_TAIL_LINES = 5
_TAIL_BYTES = 4096
_LOG_MODE = 0o600
# Begins the last line of a daemon that names the reason of its end.
_REASON = "card: "


def add_up_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `up`."""
    parser.add_argument("--model", metavar="PATH|NAME|hf:FILE", help="the default model of a daemon in the background")


def add_down_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `down`."""
    parser.add_argument("--timeout-ms", type=int, metavar="MS", help="refuse the requests that are unfinished by then")


def up(client: Client, options: Namespace) -> None:
    """Start the daemon unless it runs, wait until its default model is ready, and print one line."""
    running = _found(options) is not None
    log: Path | None = None
    ended: Callable[[float], bool] = _never
    if running and options.model is not None:
        raise ServiceError("card runs already: run carctl down first, or carctl models use NAME")
    if not running:
        log, ended = _started(options)
    with Client(options.socket, connect_timeout=_ATTEMPT_S, max_retries=0) as patient:
        try:
            _until_answering(patient, ended)
            _until_ready(patient)
        except CardError as error:
            # A daemon whose default model cannot be served writes the reason and ends.
            ended(_LAST_WORD_S)
            raise ServiceError(explain_start(error, log)) from error
        capacity = patient.status().capacity
    where = "" if log is None else f"; log: {log}"
    already = " already" if running else ""
    print(f"card is up{already}: {capacity.model}, {capacity.capacity} at once{where}")
    if capacity.model == GUIDE and sys.stdout.isatty():
        print(HINT)


def down(client: Client, options: Namespace) -> None:
    """Drain and end the daemon, and its service until the next login; does nothing if none runs."""
    manager = manager_of(Steps(), system=options.system)
    managed = _is_managed(options) and manager.installed
    found = _found(options)
    if found is None:
        print("card is down already")
        return
    drained = client.drain(options.timeout_ms)
    if managed:
        manager.stop()
    if not wait_for_end(found.pid, _END_S):
        raise ServiceError(f"process {found.pid} did not end within {_END_S:.0f} s")
    print(f"card is down: {drained.completed} completed, {drained.refused} refused")


def _found(options: Namespace) -> Status | None:
    """Return the daemon's status; None if none runs. Raises RequestTimeout if it hangs."""
    with Client(options.socket, timeout=ANSWER_S, connect_timeout=0, max_retries=0) as client:
        try:
            return client.status()
        except DaemonUnavailable as error:
            if error.tried and all(map(is_denied, error.tried)):
                raise  # a daemon may well run there
            return None


def _is_managed(options: Namespace) -> bool:
    """Return whether the named socket is that of the service."""
    return options.system or (options.socket is None and not os.environ.get("CAR_SOCKET"))


def _never(_within: float) -> bool:
    return False


def _started(options: Namespace) -> tuple[Path | None, Callable[[float], bool]]:
    """Start the service if it is installed, else a process.

    Return the process' log, and a function that returns whether it ends within so many seconds.
    """
    if _is_managed(options):
        manager = manager_of(Steps(), system=options.system)
        if manager.installed:
            if options.model is not None:
                raise ServiceError("the service's default model is set by: carctl models use NAME")
            manager.start()
            return None, _never
        if options.system:
            raise ServiceError("the system service is not installed: carctl service install --system")
    named = options.socket or os.environ.get("CAR_SOCKET")
    log = log_path()
    if named:
        # Each socket has a log of its own, so that a second daemon leaves the first one's alone.
        log = log.with_name(f"card-{'-'.join(Path(named).absolute().parts[1:])}.log")
    process = _spawned(options, log)
    return log, partial(_ends, process)


def _ends(process: "subprocess.Popen[bytes]", within: float) -> bool:
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def log_path(env: Mapping[str, str] = os.environ) -> Path:
    """Return the log file of a daemon in the background at the default socket."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Logs" / "card.log"
    return Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "car" / "card.log"


def _spawned(options: Namespace, log: Path) -> "subprocess.Popen[bytes]":
    """Start the daemon in a session of its own, which a closed terminal leaves alone."""
    flags = [
        *([] if options.socket is None else ["--socket", options.socket]),
        *([] if options.model is None else ["--model", options.model]),
    ]
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():
            log.replace(log.with_name(f"{log.name}.1"))
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _LOG_MODE)
    except OSError as error:
        raise ServiceError(f"cannot write {log}: {error.strerror}") from error
    with open(descriptor, "wb") as output:
        # The command is this installation's own, and runs without a shell.
        return subprocess.Popen(  # noqa: S603
            [card_command(), *flags], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def _until_answering(client: Client, ended: Callable[[float], bool]) -> None:
    """Return once the daemon answers; raises ServiceError when its process ended first."""
    for _ in range(int(ANSWER_S / _ATTEMPT_S)):
        try:
            client.connect()
        except DaemonUnavailable:
            if ended(0.0):
                raise ServiceError("card ended at its start") from None
        else:
            return
    raise ServiceError(f"card does not answer after {ANSWER_S:.0f} s")


def _until_ready(client: Client) -> None:
    """Return once the default model is served, with a bar on a terminal."""
    default = next(model for model in client.models() if model.default)
    if default.state != "ready":
        load_with_bar(client, default.name)


def explain_start(error: CardError, log: Path | None) -> str:
    """Return the reason with the end of the log, if there is a log."""
    if log is None:
        return f"{error}; see carctl service logs"
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    if lines and lines[-1].startswith(_REASON):
        # The error depends on the moment: a refusal, a daemon that goes down, a connection that is lost.
        return f"card ended: {one_line(lines[-1].removeprefix(_REASON))}; log: {log}"
    return f"{error}; the end of {log}: {' | '.join(map(one_line, lines)) or 'empty'}"


def wait_for_end(pid: int, seconds: float) -> bool:
    """Return whether a process ends within a time; True if there is no such process."""
    return _by_descriptor(pid, seconds) if sys.platform == "linux" else _by_queue(pid, seconds)


def _by_descriptor(pid: int, seconds: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def _by_queue(pid: int, seconds: float) -> bool:
    """As BSD's and macOS' kernels report it."""
    queue = select.kqueue()  # type: ignore[attr-defined]  # not on Linux
    try:
        flags = select.KQ_EV_ADD | select.KQ_EV_ONESHOT  # type: ignore[attr-defined]  # likewise
        event = select.kevent(pid, select.KQ_FILTER_PROC, flags, select.KQ_NOTE_EXIT)  # type: ignore[attr-defined]
        return bool(queue.control([event], 1, seconds))
    except ProcessLookupError:
        return True
    finally:
        queue.close()
