"""Thoughts are switched by the variables that a template reads, with values that it knows."""

from typing import Any

import pytest

from car_engine.prompt.rendering.chat_variables import switches
from car_engine.prompt.rendering.environment import chat_environment, local_now
from car_engine.prompt.rendering.template_reads import Reads, reads_of
from car_protocol.conversation import ReasoningMode

OPENED = "<think>{% if not enable_thinking %}</think>{% endif %}"
DEEPSEEK = (
    "{% if not thinking is defined %}{% set thinking = enable_thinking %}{% endif %}{% if not thinking %}{% endif %}"
)


def reads(source: str) -> Reads:
    return reads_of(chat_environment(local_now).parse(source))


@pytest.mark.parametrize(
    ("source", "on", "off"),
    [
        ("{{ messages }}", {}, {}),
        ("{{ enable_thinking }}", {"enable_thinking": True}, {"enable_thinking": False}),
        ("{{ thinking }}{{ message.thinking }}", {"thinking": True}, {"thinking": False}),
        ("{{ message.thinking }}{{ message['enable_thinking'] }}", {}, {}),
        (
            "{{ thinking_mode in ['enabled', 'disabled'] }}",
            {"thinking_mode": "enabled"},
            {"thinking_mode": "disabled"},
        ),
        ("{{ thinking_mode in ['thinking', 'chat'] }}", {"thinking_mode": "thinking"}, {"thinking_mode": "chat"}),
        ("{{ thinking_mode }}", {}, {}),
        ("{{ thinking_budget }}", {}, {"thinking_budget": 0}),
        ("{{ reasoning_effort == 'none' }}", {}, {"reasoning_effort": "none"}),
        ("{{ reasoning_effort == 'no_think' }}", {"reasoning_effort": "high"}, {"reasoning_effort": "no_think"}),
        ("{{ reasoning_effort in ['low', 'minimal'] }}", {}, {"reasoning_effort": "minimal"}),
        ("{{ reasoning_effort or 'medium' }}", {}, {"reasoning_effort": "low"}),
    ],
)
def test_on_and_off_set_what_the_template_reads(source: str, on: dict[str, Any], off: dict[str, Any]) -> None:
    assert switches(reads(source), "on") == on
    assert switches(reads(source), "off") == off
    assert switches(reads(source), "auto") == {}


@pytest.mark.parametrize("reasoning", ["auto", "keep"])
@pytest.mark.parametrize(
    ("source", "thinks"),
    [
        (OPENED, True),
        (OPENED.replace("enable_thinking", "thinking"), True),
        ("{% if enable_thinking is defined and not enable_thinking %}{% endif %}", False),
        ("{% set enable_thinking = enable_thinking | default(true) %}" + OPENED, False),
        ("{% if enable_thinking %}<think>{% endif %}", False),
        (DEEPSEEK, False),
    ],
)
def test_a_template_that_closes_each_thought_unless_it_is_told_is_told_to_leave_it_open(
    source: str, thinks: bool, reasoning: ReasoningMode
) -> None:
    found = switches(reads(source), reasoning)
    assert bool(found) is thinks
    assert all(found.values())
