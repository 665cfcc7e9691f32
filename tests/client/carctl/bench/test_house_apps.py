"""The apps of a house as a plan: what they send, without a server."""

from itertools import islice, pairwise
from random import Random

import msgspec
import pytest

from car_client.carctl.bench.house_apps import APPS, Call, parse_apps
from car_protocol.decide import DecideParams


def calls(app: str, lane: int = 0, seed: int = 1, session: str = "s", answer: str | None = "an answer") -> list[Call]:
    """Return the first twenty requests of a lane whose requests all have the same answer."""
    running = APPS[app].lanes[lane](Random(seed), session)
    return [next(running), *(running.send(answer) for _ in range(19))]


@pytest.mark.parametrize("app", APPS)
def test_the_same_seed_sends_the_same_and_another_session_shares_no_beginning(app: str) -> None:
    assert calls(app) == calls(app)
    others = calls(app, session="other")
    assert [each.pause_s for each in others] == [each.pause_s for each in calls(app)]
    for one, other in zip(calls(app), others, strict=True):
        assert one.params != other.params
        assert one.params.get("max_tokens") == other.params.get("max_tokens")


@pytest.mark.parametrize(("app", "turns"), [("person", 4), ("agent", 5)])
def test_a_conversation_goes_on_with_its_answers_and_then_another_begins(app: str, turns: int) -> None:
    found = [each.params["messages"] for each in calls(app)]
    assert [len(messages) for messages in found] == [2 + 2 * (number % turns) for number in range(20)]
    assert found[1][:2] == found[0]
    assert found[1][2] == {"role": "assistant", "content": "an answer"}


def test_without_an_answer_a_conversation_is_given_up() -> None:
    assert {len(each.params["messages"]) for each in calls("agent", answer=None)} == {2}


def test_an_agent_and_its_sub_agents_share_the_instructions_with_all_tools() -> None:
    agent, first, second = (calls("agent", lane)[0].params["messages"][0]["content"] for lane in range(3))
    assert first == second
    shared = sum(one == other for one, other in zip(agent, first, strict=False))
    assert shared > 0.98 * len(agent) > 2000


def test_an_editor_s_file_grows_by_a_line_and_its_beginning_stays() -> None:
    prompts = [each.params["prompt"].removesuffix("def ") for each in calls("editor")]
    grows = [later.startswith(earlier) for earlier, later in pairwise(prompts)]
    assert grows == [number % 12 != 11 for number in range(19)]
    assert {each.params["max_tokens"] for each in calls("editor")} == {24}


def test_home_fills_a_form_and_an_embedder_sends_texts() -> None:
    assert {tuple(each.params["json_schema"]["required"]) for each in calls("home")} == {
        ("device", "action", "percent")
    }
    assert {len(each.params["input"]) for each in calls("embedder")} == {8}


def test_a_decider_s_questions_are_as_the_protocol_has_them() -> None:
    for each in calls("decider"):
        assert msgspec.convert(each.params, DecideParams).names == ["0", "1", "2"]


def test_no_prompt_is_too_long_for_a_small_context() -> None:
    answer = " ".join(["answer"] * 64)
    longest = max(len(each.text.split()) for app in APPS for each in islice(calls(app, answer=answer), 20))
    assert longest < 1500


def test_apps_are_chosen_by_their_names() -> None:
    assert [app.name for app in parse_apps("editor,person,editor")] == ["editor", "person"]
    with pytest.raises(ValueError, match="no app 'cat': give person, editor"):
        parse_apps("person,cat")
