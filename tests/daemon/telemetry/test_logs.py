"""Lines of the log as structlog renders them."""

import json
import re
from pathlib import PurePath

from car_base.host.event_log import EventLog, Format, Level
from car_daemon.telemetry.logs import rendering

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def logged(style: Format, event: str, level: Level = "info", *, colours: bool = False, **facts: object) -> str:
    """Return what is written for one event, its time replaced."""
    written: list[str] = []
    log = EventLog()
    log.configure("debug", rendering(style, written.append, colours=colours))
    getattr(log, level)(event, **facts)
    (line,) = written
    return TIME.sub("TIME", line, count=1)


def test_json_is_an_object_a_line_with_event_level_and_time() -> None:
    line = logged("json", "model.failed", "error", model="m", replicas=[1, 2], path=PurePath("/m"))
    assert line.endswith("\n")
    assert json.loads(line) == {
        "model": "m",
        "replicas": [1, 2],
        "path": "PurePosixPath('/m')",
        "event": "model.failed",
        "level": "error",
        "timestamp": "TIME",
    }


def test_a_name_that_is_not_utf_8_is_escaped() -> None:
    assert "\\udcff" in logged("json", "socket.lost", socket="/run/\udcff")


def test_console_lines_have_time_level_event_and_facts() -> None:
    line = logged("console", "model.failed", "warning", why="no room", model="m", count=3)
    assert re.fullmatch(r"TIME \[warning +\] model\.failed +count=3 model=m why='no room'\n", line)


def test_nothing_in_a_fact_begins_a_line() -> None:
    assert logged("console", "x", why="a\nb").count("\n") == 1


def test_colour_is_for_terminals() -> None:
    assert "\x1b[" in logged("console", "x", "error", colours=True)
    assert "\x1b[" not in logged("console", "x", "error")


def test_no_text_of_another_process_reaches_a_terminal_with_control_characters() -> None:
    line = logged("console", "x\nforged line\x1b[2J", why="\x1b]0;title\x07", model="a\x9bb", path="/é")
    assert re.fullmatch(r"TIME \[info +\] x\\nforged line\\x1b\[2J +model=a\\x9bb path=/é why=\S+title\\x07\n", line)
