"""`carctl why`: the last prompts, and the reason of one."""

from typing import Any

import pytest

from tests.client.carctl.command import carctl
from tests.client.fake_daemon import FakeDaemon

PARTED = {
    "reason": "system",
    "at": 10,
    "tokens": 390,
    "message": 0,
    "role": "system",
    "was": "14:05.\nBe kind",
    "now": "14:06.\nBe kind",
}


def prompt(id: int | str, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "connection": 1,
        "model": "guide",
        "age_s": 3.0,
        "prompt_tokens": 1400,
        "cached_tokens": 10,
        **more,
    }


@pytest.fixture(autouse=True)
def _prompts(daemon: FakeDaemon) -> None:
    daemon.answers["daemon/why"] = {"prompts": [prompt(3), prompt("b", parted=PARTED)]}


def shown(daemon: FakeDaemon, *arguments: str) -> str:
    """Return the output of a command that succeeds."""
    done = carctl("--socket", daemon.path, "why", *arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_the_last_prompts_are_a_line_each(daemon: FakeDaemon) -> None:
    assert shown(daemon) == (
        "3         3.0 s ago  10 of 1,400 tokens cached\n"
        "b         3.0 s ago  10 of 1,400 tokens cached  system after 10\n"
    )


@pytest.mark.parametrize("reason", ["evicted", "no_mark", "restart"])
def test_tokens_whose_cells_are_lost_come_before_the_place_where_the_prompts_part(
    daemon: FakeDaemon, reason: str
) -> None:
    daemon.answers["daemon/why"] = {"prompts": [prompt("b", parted={"reason": reason, "at": 410, "tokens": 390})]}
    assert "390 tokens were read again of the first 410\n" in shown(daemon, "b")


def test_a_prompt_has_its_reason_with_the_words_of_both(daemon: FakeDaemon) -> None:
    assert shown(daemon, "b") == (
        "request b to guide, 3.0 s ago: 10 of 1,400 tokens cached\n"
        "390 tokens were read again after 10, in message 0 (system)\n"
        "why: its system message differs\n"
        '  was  "14:05.\\nBe kind"\n'
        '  now  "14:06.\\nBe kind"\n'
        "to do: put what changes, as a date, after what stays the same\n"
    )


@pytest.mark.parametrize("reason", ["message", "prompt"])
def test_what_comes_after_another_message_or_text_is_not_said_to_be_read_again(daemon: FakeDaemon, reason: str) -> None:
    daemon.answers["daemon/why"] = {"prompts": [prompt("b", parted={"reason": reason, "at": 146, "tokens": 117})]}
    assert "\n117 tokens were computed after 146\n" in shown(daemon, "b")


def test_the_last_prompt_went_on(daemon: FakeDaemon) -> None:
    daemon.answers["daemon/why"] = {"prompts": [prompt(3, cached_tokens=1399)]}
    expected = "request 3 to guide, 3.0 s ago: 1,399 of 1,400 tokens cached\nnothing was read again\n"
    assert shown(daemon, "--last") == shown(daemon, "3") == expected


def test_a_prompt_that_was_computed_without_a_reason_may_reuse_no_cells(daemon: FakeDaemon) -> None:
    assert shown(daemon, "--last") == (
        "request 3 to guide, 3.0 s ago: 10 of 1,400 tokens cached\n"
        "no earlier prompt has cells that it may reuse for the other 1,390\n"
    )


def test_a_request_that_is_not_remembered_is_an_error(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "why", "zz")
    assert (done.returncode, done.stderr) == (1, b"carctl: the daemon remembers no answer of yours with the id zz\n")
