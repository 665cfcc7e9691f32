"""The tables of the log's events: names and levels from the code that logs, decisions from the scheduler's verbs."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from car_base.host.event_log import Level
from car_base.ipc.ranges import Event
from car_daemon.scheduler import request
from tools.reference.comments import said_of
from tools.reference.protocol import Row, table

_DAEMON = Path(__file__).parents[2] / "daemon"
_LEVELS = get_args(Level)
_USUAL: Level = "warning"  # which the table leaves out
_DEFECT = "a defect, with its place in the code: please report it"
# What each event means; events of one meaning stand together.
MEANINGS = {
    "accept.paused": "no descriptor is left for another connection; clients wait",
    "call.failed": "a defect kept a call from its answer: its method and place",
    "capacity.declared": "the sequences that an engine declared, by which policy, from which figures",
    "capacity.lowered, context.lowered": ("an explicit figure that memory does not hold, or that a model cannot have"),
    "cells.no_folder, cells.not_stored": "prefixes are not written to `cache_dir`: why, and what to do",
    "cells.removed": "files of `cache_dir` that nobody used for a week were deleted",
    "config.ignored": "`CAR_INFERENCE_MAX_CONCURRENT` is not a positive integer, or a capacity of 0 was raised to 1",
    "config.invalid": "the key that cannot be used",
    "config.reloaded": "the keys that wait for the next daemon",
    "connection.dropped": (
        "a client's connection was closed: more than 12 MiB were unread for `slow_reader_ms`, "
        "or it had the most of the user with most beyond `max_client_bytes`"
    ),
    "connection.refused": "another user tried to connect",
    "cores.taken": "how many cores other programs take, which engines leave to them",
    "cores.unreadable, memory.unreadable": ("the system does not report them; threads and capacity stay"),
    "curve.outdated": ("steps are far cheaper than was measured: measured anew at the model's next start"),
    "curve.renewed": "a model whose capacity was measured on busy cores is loaded again in an idle minute",
    "daemon.idle": "`--exit-idle` ends the daemon",
    "daemon.started, daemon.stopped": "the daemon serves at its socket, and is done",
    "device.pressure": (
        "a GPU has less than a quarter (`some`) or a sixteenth (`critical`) of its reserve free: its models run fewer "
        "requests"
    ),
    "devices.found": 'the GPUs that llama.cpp finds, for models with `device = "auto"`',
    "devices.unknown": (
        'the process that finds GPUs crashed or was silent for 20 s: models with `device = "auto"` are on the CPU'
    ),
    "engine.ended, engine.launch_failed, engine.restarts": (
        "an engine ended, with its exit status (a negative one is a signal), or did not start; when the next one starts"
    ),
    "engine.placed, engine.unplaced": "the machine of the cluster that has the engine; why none has a place for it",
    "engine.slow": (
        "the guide is decoded more slowly than by any llama.cpp that was built for this CPU; "
        "`why` has the figures and the command that builds one"
    ),
    "engine.stuck": (
        "an engine was killed: no heartbeat, a step that does not end, or a preparation of more than 5 s for each MiB"
    ),
    "engine.unpacked": (
        "an engine crashed while it loaded; the next engines take weights as the file has them "
        "([what to do](../explanation/failure.md))"
    ),
    "images.pillow_missing": (
        "a model has a projector, and Pillow is not installed (`card-daemon[images]`): requests with images get 1004"
    ),
    "keep_alive.armed, model.fits, model.not_awaited, model.waits": "why a model is loaded now, later or not at all",
    "layers.on_host": ("layers, or experts of layers, without room on the GPUs: computed on the host, which is slower"),
    "load.retried": (
        "a model did not load with the layers planned for its GPUs; tried once more with four fifths of their memory"
    ),
    "memory.pressure": "the level of memory pressure changed, with the readings",
    "metrics.served": "the address of the metrics",
    "model.evicted, model.idle": (
        "a model was unloaded: for another one (`in_favour_of`), or after its `keep_alive_s`"
    ),
    "model.failed": (
        "the model cannot be loaded, or its engine died too often; `run` is the command that downloads its file"
    ),
    "model.file_changed": (
        "the file of a loaded model changed, and the model is loaded again: at once if it was `overwritten`, "
        "after its running requests if it was `replaced`"
    ),
    "model.no_room": "a model was not loaded: what it needs, and what is free",
    "model.not_inspected": "a model's file could not be read for `models/show`",
    "model.template_invalid": (
        "the chat template in the model's file cannot be used, and why: requests with `messages` get 1004"
    ),
    "model.unknown_parts": (
        "a model's file has tensor types that this version does not know; an engine tries it all the same"
    ),
    "placer.apart, placer.ended": "the process that places engines has no connection to the cluster, or ended",
    "request.cancelled": "by its client, its user or root, or by its connection's end",
    "request.failed": (
        "answered with `internal_error`. `fault` is the place in the code, or `decode`, `embedder` or `projector` "
        "(llama.cpp failed), or `lease` (more ran than was declared)"
    ),
    "request.timed_out": "a deadline passed before the first token",
    "request.waited": "a request waited 100 ms or more for its lease",
    "socket.bound_again, socket.lost": "something else is at the socket's path; it is the daemon's again",
    "supervisor.failed": (
        "a defect: the model is `failed` until its next request, the default one until the daemon starts again"
    ),
    "tokenization.quarantined": "a text to cut into tokens was there when two engines died: it is refused",
    "usage.not_written": (
        "the ledger's file cannot be used, and why: once, until it can be used again; its rows wait in memory"
    ),
    "watchdog.held_back": "the watchdog's ping was left out, and why",
    "cells.removal_failed, cleanup.failed, connection.failed, daemon.failed, engine.failed, engine.frame_failed, "
    "loop.failed, metrics.failed, request.incomplete, request.unsendable, status.failed, weights.watch_failed": _DEFECT,
}


def events() -> str:
    """Return every event of the log but the scheduler's decisions; raises KeyError for one without a meaning."""
    levels = dict(logged())
    rows: list[Row] = []
    for names, meaning in MEANINGS.items():
        of_names = {levels[name] for name in names.split(", ")}
        shown = ", ".join(f"`{name}`" for name in names.split(", "))
        shown_levels = "" if of_names == {_USUAL} else ", ".join(each for each in _LEVELS if each in of_names)
        rows.append((shown, shown_levels, meaning))
    return table(("event", "level", "meaning"), rows)


def decisions() -> str:
    """Return the scheduler's decisions with what the code says beside each verb."""
    said = said_of(request.Verb, request)
    return table(("event", "decision"), [(f"`schedule.{verb}`", meaning) for verb, meaning in said])


def logged() -> Iterator[tuple[str, Level]]:
    """Yield the events that the daemon logs by their names, each with its level."""
    for file in sorted(_DAEMON.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (level := _level(node.func)) and node.args:
                name = node.args[0]
                if isinstance(name, ast.Constant):
                    yield str(name.value), level
    # Engines send theirs as frames, which the daemon logs as warnings.
    for event in get_args(Event):
        yield event, "warning"


def _level(function: ast.expr) -> Level | None:
    match function:
        case ast.Attribute(value=ast.Name(id="log") | ast.Attribute(attr="log"), attr=level) if level in _LEVELS:
            return next(each for each in _LEVELS if each == level)
        case ast.Attribute(attr="report", value=ast.Name(id="defects")) | ast.Name(id="report"):
            return "error"
    return None


TABLES = {"log events": events, "schedule events": decisions}
