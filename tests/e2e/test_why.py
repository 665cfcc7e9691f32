"""An app that loses its prefix sees where its prompts part, in the answer, in the status, and by `carctl why`."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from car_base import guide
from tests.e2e.support import BIN, Daemon, configured

pytestmark = pytest.mark.slow

RULES = " ".join(f"Rule {number}: be kind." for number in range(30))


def chat(system: str, *turns: str) -> dict[str, Any]:
    roles = ("user", "assistant") * len(turns)
    messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
    return {"messages": [{"role": "system", "content": system}, *messages], "max_tokens": 4, "temperature": 0}


def test_a_date_in_the_system_prompt_is_named_with_its_words(start: Callable[..., Daemon]) -> None:
    daemon = start("--capacity", "1")
    with daemon.connect() as client:
        first = client.result("infer", chat(f"It is 14:05. {RULES}", "Hello"))["usage"]
        assert "parted" not in first
        again = client.result("infer", chat(f"It is 14:06. {RULES}", "Hello"))["usage"]
        parted = again["parted"]
        assert (parted["reason"], parted["message"], parted["role"]) == ("system", 0, "system")
        assert (parted["was"][:6], parted["now"][:6]) == ("14:05.", "14:06.")
        assert parted["tokens"] > 0.9 * (again["prompt_tokens"] - again["cached_tokens"])
        status = client.result("daemon/status")
        assert status["models"][0]["read_again"] == {"system": parted["tokens"]}
        metric = f'card_read_again_tokens_total{{model="guide",reason="system"}} {parted["tokens"]:.1f}'
        assert metric in client.result("daemon/metrics")["text"]
        assert [each.get("parted") for each in client.result("daemon/why")["prompts"]] == [parted, None]
    carctl = [str(BIN / "carctl"), "--socket", str(daemon.path), "why", "--last"]
    assert "14:06" in subprocess.run(carctl, capture_output=True, check=True, text=True).stdout
    with daemon.connect() as client:
        # Another question is new, and no part of it was read before.
        for question in ("What is a lease, and who gives it to whom? ", "Where does a daemon keep its keys? "):
            other = client.result("infer", chat(f"It is 14:06. {RULES}", question * 9))["usage"]
        assert other["parted"]["reason"] == "message"
        assert client.result("daemon/status")["models"][0]["read_again"] == {"system": parted["tokens"]}


def test_a_conversation_whose_engine_died_is_read_again_after_the_restart(start: Callable[..., Daemon]) -> None:
    daemon = start("--capacity", "1")
    with daemon.connect() as client:
        answer = client.result("infer", chat(RULES, "Hello"))
        daemon.engine().send_signal(signal.SIGKILL)
        usage = client.result("infer", chat(RULES, "Hello", answer["text"], "And then?"))["usage"]
        assert usage["parted"]["reason"] == "restart"
        assert usage["parted"]["tokens"] == answer["usage"]["prompt_tokens"]


def test_a_text_that_goes_on_after_its_engine_died_is_read_again_after_the_restart(
    start: Callable[..., Daemon],
) -> None:
    daemon = start("--capacity", "1")
    with daemon.connect() as client:
        once = client.result("infer", {"prompt": RULES, "max_tokens": 1, "temperature": 0})["usage"]
        daemon.engine().send_signal(signal.SIGKILL)
        usage = client.result("infer", {"prompt": f"{RULES}\nRule 30: be brief.", "max_tokens": 1})["usage"]
        assert usage["parted"] == {"reason": "restart", "at": once["prompt_tokens"], "tokens": once["prompt_tokens"]}


def test_several_answers_are_one_prompt_and_messages_are_numbered_as_they_were_sent(
    start: Callable[..., Daemon], folder: Path
) -> None:
    entry = f'[models.kind]\npath = "{guide.PATH}"\nsystem = "{RULES}"\n'
    daemon = start("--capacity", "3", *configured(folder, entry))
    with daemon.connect() as client:
        for name in ("anna", "hannah"):
            said = [{"role": "user", "content": f"I am {name}, and want to know what a lease is. " * 3}]
            request = {"model": "kind", "messages": said, "max_tokens": 4, "n": 3}
            usage = client.result("infer", request)["usage"]
        assert (usage["parted"]["message"], usage["parted"]["role"]) == (0, "user")
        prompts = client.result("daemon/why")["prompts"]
        assert [each.get("parted") for each in prompts] == [usage["parted"], None]


def test_a_new_conversation_lost_its_system_message_with_an_engine_too(start: Callable[..., Daemon]) -> None:
    daemon = start("--capacity", "1")
    with daemon.connect() as client:
        client.result("infer", chat(RULES, "Hello"))
        daemon.engine().send_signal(signal.SIGKILL)
        usage = client.result("infer", chat(RULES, "What is a lease?"))["usage"]
        assert usage["parted"]["reason"] == "restart"
        assert usage["parted"]["tokens"] > 0.5 * usage["prompt_tokens"]
