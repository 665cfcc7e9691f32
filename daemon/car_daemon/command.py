"""The `card` command: arguments in, exit code out."""

import argparse
import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from typing import NoReturn, get_args

import uvloop

from car_daemon import faults, logs
from car_daemon.activation import ActivatedSocket, activated_socket
from car_daemon.config import Config, Flags, load_config
from car_daemon.config_tables import MAX_THREADS, ConfigError
from car_daemon.daemon import Daemon
from car_daemon.directory import BadAddress
from car_daemon.listen import AddressInUse, OwnSocket
from car_daemon.metrics_socket import CannotListen, MetricsSocket, listening_socket
from car_daemon.models.link import launch
from car_daemon.notify import Notifier
from car_protocol import __version__
from car_protocol.hub import PREFIX, hub_file

# sysexits.h: wrong usage, a needed service is missing, try again later, a bad configuration.
EX_USAGE = 64
EX_UNAVAILABLE = 69
EX_TEMPFAIL = 75
EX_CONFIG = 78
_MAX_PORTABLE_INT = 2**31 - 1
_MOST_DIGITS = 10


def run(arguments: list[str]) -> int:
    """Run the daemon with these arguments; return the exit code."""
    logs.open_standard_streams()
    options = vars(_parser().parse_args(arguments))
    only_check = options.pop("check_config")
    flags = Flags(**options)
    try:
        config = load_config(flags)
        if only_check:
            return 0
        missing = _missing_model(config)
        if missing is not None:
            return _complain(EX_UNAVAILABLE, missing)
        with closing(_listening_socket(config)) as listening, _metrics_socket(config) as metrics:
            return _serve(config, listening, metrics, lambda: load_config(flags))
    except (ConfigError, CannotListen) as error:
        return _complain(EX_CONFIG, str(error))
    except BadAddress as error:
        return _complain(EX_USAGE, str(error))
    except AddressInUse as error:
        return _complain(EX_TEMPFAIL, f"{error}; `carctl status` talks to it")


def _listening_socket(config: Config) -> OwnSocket | ActivatedSocket:
    """Return the service manager's socket, else one of our own; raises BadAddress or AddressInUse."""
    return activated_socket() or OwnSocket(config.socket, shared=bool(config.allow_uids))


def _metrics_socket(config: Config) -> AbstractContextManager[MetricsSocket | None]:
    """Return where metrics are to be served, None where they are not; raises CannotListen."""
    return nullcontext() if config.metrics is None else closing(listening_socket(config.metrics))


def _serve(
    config: Config,
    listening: OwnSocket | ActivatedSocket,
    metrics: MetricsSocket | None,
    read_config: Callable[[], Config],
) -> int:
    logs.configure(config.log_level, config.log_format)
    faults.install()
    logs.standard_error.detach()
    try:
        failure = uvloop.run(_run(config, listening, metrics, read_config))
        if failure is not None:
            path = config.models[config.default_model].path
            return _complain(EX_UNAVAILABLE, f"cannot load the model {path}: {failure}")
        return 0
    finally:
        logs.standard_error.attach()


async def _run(
    config: Config,
    listening: OwnSocket | ActivatedSocket,
    metrics: MetricsSocket | None,
    read_config: Callable[[], Config],
) -> str | None:
    """Serve; return why the default model could not be loaded, None after a clean stop."""
    for warning in config.warnings:
        logs.log.warning("config.ignored", why=warning)
    daemon = Daemon(
        config,
        listening,
        launcher=partial(launch, stderr=logs.standard_error.inherited),
        notifier=Notifier.of_environment(),
        read_config=read_config,
        metrics_socket=metrics,
    )
    await daemon.run()
    _ignore_signals()
    return daemon.failure


def _ignore_signals() -> None:
    """Have no late signal end what is over: the loop forgets its handlers before the process is gone."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def _missing_model(config: Config) -> str | None:
    settings = config.models[config.default_model]
    # A path that may not be looked at is as good as missing.
    with suppress(OSError):
        if settings.path.is_file():
            return None
    mend = "give --model the path of a GGUF file" if settings.pull is None else f"run: {settings.pull}"
    return f"there is no model file {settings.path}: {mend}"


def _complain(code: int, message: str) -> int:
    logs.standard_error.write(f"card: {message}\n")
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EX_USAGE, f"card: {message}; `card --help` lists the options\n")


def _parser() -> argparse.ArgumentParser:
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
    parser.add_argument("--check-config", action="store_true", help="look whether the configuration is valid, and exit")
    parser.add_argument("--capacity", type=_count, metavar="N", help="requests that may run at once on this machine")
    parser.add_argument("--context-tokens", type=_positive, metavar="N", help="tokens of context of each request")
    parser.add_argument("--threads", type=_threads, metavar="N", help="threads of the engine (default: physical cores)")
    parser.add_argument(
        "--gpu-layers", type=_layers, metavar="N", help="layers to put on the GPU, -1 for all (default: 0)"
    )
    parser.add_argument("--log-level", choices=get_args(logs.Level), help="default: info")
    parser.add_argument("--log-format", choices=get_args(logs.Format), help="default: console")
    parser.add_argument("--exit-idle", type=_seconds, metavar="SECONDS", help="end after so long without a connection")
    return parser


def _model(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # It is told to clients in JSON.
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8: link to the file under another name") from error
    if text.startswith(PREFIX):
        try:
            hub_file(text.removeprefix(PREFIX))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _count(text: str) -> int:
    return _integer(text, 0, _MAX_PORTABLE_INT, "an integer of at least 0")


def _positive(text: str) -> int:
    return _integer(text, 1, _MAX_PORTABLE_INT, "a positive integer")


def _threads(text: str) -> int:
    return _integer(text, 1, MAX_THREADS, f"a positive integer of at most {MAX_THREADS}")


def _layers(text: str) -> int:
    return _integer(text, -1, _MAX_PORTABLE_INT, "a number of layers, or -1 for all")


def _seconds(text: str) -> float:
    return float(_integer(text, 1, _MAX_PORTABLE_INT, "a whole number of seconds, at least 1"))


def _integer(text: str, least: int, most: int, what: str) -> int:
    """Read an integer; a text too long to be one is not even converted."""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS and least <= int(text) <= most:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text[:_MOST_DIGITS]!r} is not {what}")
