"""`carctl status`: the picture, the plain lines, JSON, and again and again."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client.carctl.terminal.text import bytes_text, duration
from car_client.carctl.view.picture import gauge, picture, sequence_bar
from car_client.carctl.view.status_figures import SequenceUse
from car_client.carctl.view.status_tables import callers, plain_lines
from car_client.results import Status
from tests.client.carctl.command import carctl, carctl_on_pipe, carctl_on_terminal, interrupt
from tests.client.carctl.pictures import busy, drawn, kept
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import busy_status, status

SIZES = [(80, 24), (80, 50), (160, 50)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_picture_of_a_busy_daemon_is_the_kept_one(width: int, height: int) -> None:
    shown = drawn(picture(busy(), width, height), width)
    assert shown == kept(f"status_{width}x{height}", shown)


def test_the_plain_lines_of_a_busy_daemon_are_the_kept_ones() -> None:
    shown = "".join(f"{line}\n" for line in plain_lines(busy()))
    assert shown == kept("status_plain", shown)


@pytest.mark.parametrize(("width", "height"), [*SIZES, (80, 30), (120, 24), (200, 80)])
def test_the_picture_fits_the_terminal(width: int, height: int) -> None:
    lines = drawn(picture(busy(), width, height), width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) < height


def shared() -> Status:
    """Return the busy daemon's status as a user sees it whose sequences and connections are only some of all."""
    return msgspec.convert(
        busy_status()
        | {
            "others": {"connections": 17, "in_flight": 23, "sequences": 3},
            "more_connections": {"connections": 12, "in_flight": 34, "tokens_served": 5678},
        },
        Status,
    )


def test_other_users_and_connections_beyond_the_list_are_rows_with_their_counts() -> None:
    for shown in ("\n".join(plain_lines(shared())), drawn(picture(shared(), 160, 50), 160)):
        lines = [line.split() for line in shown.splitlines()]
        assert any(line[-4:] == ["more", "12", "34", "5,678"] for line in lines)
        assert any(line[-4:] == ["other", "users", "17", "23"] for line in lines)
        assert "3 of other users" in shown


def test_a_user_without_requests_is_shown_those_of_others() -> None:
    sample = busy_status() | {
        "sequences": [],
        "connections": [],
        "others": {"connections": 1, "in_flight": 2, "sequences": 1},
    }
    shown = "\n".join(plain_lines(msgspec.convert(sample, Status)))
    assert "1 of other users" in shown
    assert "nothing" not in shown


@pytest.mark.parametrize(("width", "height"), [*SIZES, (80, 30), (120, 24), (200, 80)])
def test_the_picture_of_a_shared_daemon_fits_the_terminal(width: int, height: int) -> None:
    lines = drawn(picture(shared(), width, height), width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) < height


@pytest.mark.parametrize(("width", "height"), [(20, 5), (40, 10), (79, 15)])
def test_a_tiny_terminal_breaks_nothing(width: int, height: int) -> None:
    lines = drawn(picture(busy(), width, height), width).splitlines()
    assert max(map(len, lines)) <= width


def test_a_narrow_terminal_shows_whole_columns_and_the_state_before_the_path() -> None:
    shown = drawn(picture(busy(), 50, 40), 50)
    assert shown == kept("status_50x40", shown)
    assert "serving" in shown
    assert "…" not in shown.split("running")[1]


def test_nothing_in_a_name_drives_the_terminal() -> None:
    evil = "\x1b[2J[bold]x[/bold]\x07"
    sample = busy_status()
    sample["socket"] = sample["capacity"]["model"] = sample["models"][0]["name"] = evil
    sample["sequences"][0]["client"] = sample["connections"][0]["client"] = evil
    shown = drawn(picture(msgspec.convert(sample, Status), 80, 50), 80)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "␛[2J[bold]x" in shown


def test_a_failed_model_says_why() -> None:
    sample = busy_status()
    sample["capacity"] |= {"state": "failed", "reason": "the file is no model", "context_tokens": None}
    assert "failed  8 at once (measured)  the file is no model" in drawn(
        picture(msgspec.convert(sample, Status), 100, 50), 100
    )


@pytest.mark.parametrize(
    ("now", "shown"),
    [
        (SequenceUse(1, 1, 1, 1, 0), "██ ▓▓ ▒▒ ░░ "),
        (SequenceUse(1, 0, 0, 4, 3), "█ ░ ░ ░ ░   "),
        (SequenceUse(12, 0, 0, 12, 0), "██████░░░░░░"),
        (SequenceUse(0, 0, 0, 0, 0), "            "),
    ],
)
def test_a_bar_has_a_block_for_every_sequence_as_long_as_they_fit(now: SequenceUse, shown: str) -> None:
    assert sequence_bar(now, 12).plain == shown


@pytest.mark.parametrize(
    ("value", "whole", "shown"), [(0, 10, "────"), (1, 1000, "━───"), (5, 10, "━━──"), (20, 10, "━━━━"), (0, 0, "────")]
)
def test_a_gauge_shows_the_share_and_anything_at_all(value: int, whole: int, shown: str) -> None:
    assert gauge(value, whole, 4, "").plain == shown


def test_the_busiest_client_comes_first_and_labels_are_one() -> None:
    sample = busy_status()
    sample["connections"][1]["client"] = sample["connections"][3]["client"] = "shell"
    (first, *_) = callers(msgspec.convert(sample, Status).connections)
    assert first == ("shell", 2, 4, 49_380)


def test_the_requests_of_a_key_of_the_door_are_shown_by_the_key_and_their_label() -> None:
    sample = busy_status()
    sample["connections"] = [{**sample["connections"][1], "tenant": "obsidian"}]
    sample["connections"][0].pop("client", None)
    assert [each.name for each in callers(msgspec.convert(sample, Status).connections)] == ["obsidian"]
    sample["connections"][0]["client"] = "OpenAI"
    assert [each.name for each in callers(msgspec.convert(sample, Status).connections)] == ["obsidian/OpenAI"]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1024, "1 KiB"), (1000 * 2**20, "1.0 GiB"), (2**45, "32.0 TiB")]
)
def test_a_size_has_the_unit_that_keeps_it_short(size: int, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0012, "1.2 ms"),
        (0.012, "12 ms"),
        (1.23, "1.2 s"),
        (61, "1 min"),
        (7380, "2 h 03 min"),
        (360_000, "100 h 00 min"),
    ],
)
def test_a_time_has_the_unit_that_keeps_it_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_pipe_gets_plain_lines(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "status")
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode()
    for expected in (
        "card 0.3.0 serving  up 2 h 03 min  ",
        "model     guide  ready  4 at once (measured) of 2,048 tokens\n",
        "capacity  1 decode 3 free\n",
        "queue     2 of 64, oldest 12 ms\n",
        "memory    4.0 GiB of 16.0 GiB used\n",
        "speed     41.5 tokens/s decode   900 tokens/s prefill\n",
        "cache     3 hits   100 prompt tokens saved\n",
        "requests  1 in flight   9 completed   1 cancelled   1 rejected\n",
        "guide  ready  cpu ",
        "41.5/s    900/s  120 MiB         0\n",
    ):
        assert expected in shown


def test_plain_lines_keep_to_80_columns_and_cannot_drive_the_terminal(daemon: FakeDaemon) -> None:
    long = "\x1b[2J" + "m" * 200
    sample = status("/run/" + "a" * 100)
    sample["capacity"]["model"] = sample["models"][0]["name"] = sample["sequences"][0]["model"] = long
    daemon.answers["daemon/status"] = sample
    shown = carctl("--socket", daemon.path, "status").stdout.decode()
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    assert "␛[2J" in shown


def on_terminal(daemon: FakeDaemon, **environment: str) -> str:
    """Return what `carctl status` shows on a terminal."""
    env = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40", **environment}
    with carctl_on_terminal("--socket", daemon.path, "status", env=env) as terminal:
        return terminal.end().decode()


def test_a_terminal_gets_the_picture_in_colour(daemon: FakeDaemon) -> None:
    shown = on_terminal(daemon)
    assert "capacity" in shown
    assert "\x1b[32m" in shown


def test_without_a_daemon_no_screen_is_taken(tmp_path: Path) -> None:
    env = {"TERM": "xterm-256color"}
    with carctl_on_terminal("--socket", tmp_path / "none", "status", "--watch", env=env) as terminal:
        shown = terminal.end()
    assert b"no daemon answers" in shown
    assert b"\x1b" not in shown


def test_no_color_is_honoured(daemon: FakeDaemon) -> None:
    shown = on_terminal(daemon, NO_COLOR="1")
    assert "█" in shown
    assert not any(f"\x1b[{code}" in shown for code in (31, 32, 33, 34, 35, 36))


def test_a_dumb_terminal_gets_plain_lines(daemon: FakeDaemon) -> None:
    shown = on_terminal(daemon, TERM="dumb")
    assert "capacity  1 decode 3 free" in shown
    assert "\x1b" not in shown


def test_without_rich_a_terminal_gets_plain_lines(daemon: FakeDaemon) -> None:
    env = {"TERM": "xterm", "COLUMNS": "80"}
    with carctl_on_terminal("--socket", daemon.path, "status", env=env, without=("rich",)) as terminal:
        shown = terminal.end().decode()
    assert terminal.process.returncode == 0
    assert "capacity  1 decode 3 free" in shown


def test_status_as_json_is_the_result_as_it_came(daemon: FakeDaemon) -> None:
    daemon.answers["daemon/status"]["something_new"] = True
    done = carctl("--socket", daemon.path, "status", "--json")
    assert msgspec.json.decode(done.stdout) == daemon.answers["daemon/status"]
    assert done.stdout.startswith(b'{\n  "version": "0.3.0",\n')


def test_watching_as_json_is_a_line_for_every_status_that_the_daemon_sends(daemon: FakeDaemon) -> None:
    with carctl_on_pipe("--socket", daemon.path, "status", "--watch", "--json") as process:
        assert process.stdout is not None
        first: dict[str, Any] = msgspec.json.decode(process.stdout.readline())
        daemon.tell_status(pid=4343)
        second: dict[str, Any] = msgspec.json.decode(process.stdout.readline())
        interrupt(process)
    assert (first["pid"], second["pid"], process.returncode) == (4242, 4343, 130)
    assert daemon.params("daemon/status") == {"subscribe": True, "interval_ms": 1000}


@pytest.mark.slow
def test_watching_asks_again_and_again_where_the_daemon_does_not_tell(daemon: FakeDaemon) -> None:
    daemon.offers_status = False
    with carctl_on_pipe("--socket", daemon.path, "status", "--watch") as process:
        daemon.wait_for("daemon/status", 3)
        interrupt(process)
    assert process.returncode == 130


def test_a_reader_that_leaves_ends_the_watch_quietly(daemon: FakeDaemon) -> None:
    with carctl_on_pipe("--socket", daemon.path, "status", "--watch", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        daemon.tell_status(pid=4343)
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_watching_ends_when_the_daemon_does(daemon: FakeDaemon) -> None:
    with carctl_on_pipe("--socket", daemon.path, "status", "--watch") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        daemon.drop()
        assert process.stderr.read() == b"carctl: the connection to the daemon was lost\n"
    assert process.returncode == 69


def test_watching_on_a_terminal_draws_in_place_and_leaves_the_screen_as_it_was(daemon: FakeDaemon) -> None:
    env = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40"}
    with carctl_on_terminal("--socket", daemon.path, "status", "--watch", env=env) as terminal:
        terminal.read_until(b"pid 4242")
        daemon.tell_status(pid=4343)
        terminal.read_until(b"pid 4343")
        interrupt(terminal.process)
        shown = terminal.end()
    assert terminal.process.returncode == 130
    assert shown.index(b"\x1b[?1049h") < shown.index(b"pid 4242") < shown.index(b"\x1b[?1049l")
