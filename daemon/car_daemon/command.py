"""The `card` command: arguments in, exit code out."""

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import NoReturn, get_args

import uvloop

from car_base import guide
from car_base.host import defects, event_log
from car_base.ipc.engine_settings import MAX_THREADS
from car_daemon.config.settings import Config, Flags, load_config
from car_daemon.config.tables import GUIDE, ConfigError
from car_daemon.engines.link import launch
from car_daemon.engines.supervisor import DIED_ALIKE
from car_daemon.lifecycle.assembly import Seams, Sockets
from car_daemon.lifecycle.daemon import Daemon
from car_daemon.lifecycle.readiness import Notifier
from car_daemon.sockets.activation import ActivatedSocket, activated_socket
from car_daemon.sockets.loopback import CannotListen, MetricsSocket, listening_socket
from car_daemon.sockets.own_socket import AddressInUse, BadAddress, OwnSocket
from car_daemon.telemetry import logs
from car_protocol import __version__
from car_protocol.hub import PREFIX, hub_file

# Names and numbers as in sysexits.h.
EX_USAGE = 64  # wrong usage, or a socket path that cannot be used
EX_UNAVAILABLE = 69  # the default model cannot be loaded
EX_OSERR = 71  # the system lacks what the daemon needs: memory, threads, descriptors or `/proc`
EX_TEMPFAIL = 75  # another daemon listens at the socket
EX_CONFIG = 78  # a bad configuration, or an address for metrics that cannot be had
_MAX_PORTABLE_INT = 2**31 - 1
_MOST_DIGITS = 10
_STANDARD_ERROR = 2
_HINT = "card: the guide answers, which knows only card; others: carctl models suggest\n"


def run(arguments: list[str]) -> int:
    """Run the daemon with these arguments; return the exit code."""
    logs.open_standard_streams()
    options = vars(make_parser().parse_args(arguments))
    only_check = options.pop("check_config")
    if options.pop("check"):
        return _check()
    flags = Flags(**options)
    try:
        config = load_config(flags)
        if only_check:
            return 0
        if config.default_model == GUIDE and os.isatty(_STANDARD_ERROR):
            logs.standard_error.write(_HINT)
        missing = _missing_model(config)
        if missing is not None:
            return _complain(EX_UNAVAILABLE, missing)
        with ExitStack() as stack:
            # The service manager's socket, else one of our own.
            listening = activated_socket() or OwnSocket(config.socket, shared=bool(config.allow_uids))
            stack.callback(listening.close)
            metrics = None if config.metrics is None else listening_socket(config.metrics)
            if metrics is not None:
                stack.callback(metrics.close)
            return _serve(config, listening, metrics, lambda: load_config(flags))
    except (ConfigError, CannotListen) as error:
        return _complain(EX_CONFIG, str(error))
    except BadAddress as error:
        return _complain(EX_USAGE, str(error))
    except AddressInUse as error:
        return _complain(EX_TEMPFAIL, f"{error}; see `carctl status`, or give another path by --socket")


def _serve(
    config: Config,
    listening: OwnSocket | ActivatedSocket,
    metrics: MetricsSocket | None,
    read_config: Callable[[], Config],
) -> int:
    if config.sandbox == "strict":
        # Imported here because ctypes and the kernel's tables take 3 ms, which only a strict start needs; done before
        # the first thread, because each thread gains privileges by itself.
        from car_base.host import kernel_sandbox

        kernel_sandbox.give_up_privileges()
        kernel_sandbox.hide_memory()
    defects.install()
    defects.dump_stacks_on_signal()
    logs.standard_error.detach()
    try:
        failure = uvloop.run(_run(config, listening, metrics, read_config))
        if failure is None:
            return 0
        path = config.models[config.default_model].path
        return _complain(EX_UNAVAILABLE, f"cannot load the model {path}: {_explained(failure)}")
    except (OSError, MemoryError, RuntimeError) as error:
        # No memory, thread or descriptor, or no /proc, from which /dev/fd and the limits are read.
        defects.report("daemon.failed", error)
        what = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
        return _complain(EX_OSERR, f"the system lacks what the daemon needs: {type(error).__name__}: {what}")
    finally:
        # Without memory the log's renderer cannot be imported; what went wrong is written already.
        with contextlib.suppress(MemoryError, ImportError, OSError, RuntimeError, SystemError):
            if not event_log.log.is_configured:
                logs.configure(config.log_level, config.log_format)
            logs.standard_error.attach()


async def _run(
    config: Config,
    listening: OwnSocket | ActivatedSocket,
    metrics: MetricsSocket | None,
    read_config: Callable[[], Config],
) -> str | None:
    """Serve; return the reason why the default model could not be loaded, None after a clean stop."""
    for warning in config.warnings:
        event_log.log.warning("config.ignored", why=warning)
    seams = Seams(launcher=launch, notifier=Notifier.of_environment())
    daemon = Daemon(config, Sockets(listening, metrics), seams, read_config)
    logging = asyncio.create_task(_configure_log(config))
    await daemon.run()
    await logging
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        # A late signal must not end what is over, nor reach a closed loop.
        signal.signal(number, signal.SIG_IGN)
    return daemon.failure


async def _configure_log(config: Config) -> None:
    """Import structlog in a thread while the first clients are served, then render the log with it."""
    await asyncio.to_thread(import_module, "structlog")
    logs.configure(config.log_level, config.log_format)


def _check() -> int:
    """Try the installed llama.cpp; print what was found."""
    # Imported here because no other start needs it.
    from car_daemon.engines.binding_check import check_binding

    check = check_binding(guide.PATH)
    for line in (check.text, *check.advice):
        logs.standard_error.write(f"card: {line}\n")
    return 0 if check.works else EX_UNAVAILABLE


def _explained(failure: str) -> str:
    """Return a failure of the default model, with advice if llama.cpp itself does not work here."""
    if not failure.startswith(DIED_ALIKE):
        return failure
    from car_daemon.engines.binding_check import check_binding

    check = check_binding(guide.PATH)
    return failure if check.works else f"{failure}; {check.text}"


def _missing_model(config: Config) -> str | None:
    settings = config.models[config.default_model]
    if settings.placed:
        # The file is on the machines of the cluster.
        return None
    # A path without permission counts as missing.
    with suppress(OSError):
        if settings.path.is_file():
            return None
    remedy = "give --model the path of a GGUF file" if settings.pull is None else f"run: {settings.pull}"
    return f"there is no model file {settings.path}: {remedy}"


def _complain(code: int, message: str) -> int:
    logs.standard_error.write(f"card: {message}\n")
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EX_USAGE, f"card: {message}; `card --help` lists the options\n")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    parser = _Parser(prog="card", description="Serve a language model to every app of this machine.")
    parser.add_argument("--version", action="version", version=f"card {__version__}")
    parser.add_argument(
        "--socket", metavar="PATH", help="where to listen (default: $CAR_SOCKET or the runtime directory)"
    )
    parser.add_argument(
        "--model",
        type=_model,
        metavar="PATH|NAME|hf:FILE",
        help="a GGUF file, a configured model, or hf:owner/repo/file.gguf (default: the built-in guide)",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="the TOML file (default: card.toml in the configuration folders)"
    )
    parser.add_argument("--check", action="store_true", help="try llama.cpp on this machine and exit")
    parser.add_argument("--check-config", action="store_true", help="check the configuration and exit")
    count, positive = _integer(0, "an integer of at least 0"), _integer(1, "a positive integer")
    threads = _integer(1, f"a positive integer of at most {MAX_THREADS}", most=MAX_THREADS)
    layers = _integer(-1, "a number of layers, or -1 for all")
    seconds = _integer(1, "a whole number of seconds, at least 1")
    parser.add_argument("--capacity", type=count, metavar="N", help="requests that may run at once on this machine")
    parser.add_argument("--context-tokens", type=positive, metavar="N", help="tokens of context of each request")
    parser.add_argument("--threads", type=threads, metavar="N", help="threads of the engine (default: physical cores)")
    parser.add_argument(
        "--gpu-layers", type=layers, metavar="N", help="layers to put on the GPU, -1 for all (default: 0)"
    )
    parser.add_argument("--log-level", choices=get_args(event_log.Level), help="default: info")
    parser.add_argument("--log-format", choices=get_args(event_log.Format), help="default: console")
    parser.add_argument(
        "--exit-idle",
        type=lambda text: float(seconds(text)),
        metavar="SECONDS",
        help="exit after this time without a client",
    )
    return parser


def _model(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # Refused because clients get the name in JSON, which is UTF-8.
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8: link to the file under another name") from error
    if text.startswith(PREFIX):
        try:
            hub_file(text.removeprefix(PREFIX))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _integer(least: int, expected: str, *, most: int = _MAX_PORTABLE_INT) -> Callable[[str], int]:
    """Return a reader of integers; it refuses a text of more than 10 digits unconverted."""

    def read(text: str) -> int:
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text[:_MOST_DIGITS]!r} is not {expected}")

    return read
