"""Chats as text: templates that take no gaps get a second form, and every form is bounded."""

from copy import deepcopy
from datetime import datetime
from typing import Any

import pytest

from car_engine.prompt.rendering.environment import TemplateRefusal
from car_engine.prompt.rendering.writer import TemplateWriter
from car_protocol.conversation import Function, Message, TextPart, Tool
from tests.engine.prompt.chats import TODAY, call, calls, chat, tool, user

BARE = Tool("function", Function("ping"))
LOOK_UP = tool("look_up", "Look up", {"word": {"type": "string"}})
TURNS = "{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TURNS


class Clock:
    """Returns one moment, and counts the readings: one a rendering."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> datetime:
        self.readings += 1
        return TODAY


def writer(source: str, clock: Clock | None = None) -> TemplateWriter:
    return TemplateWriter(source, {"bos_token": "<s>", "eos_token": "</s>"}, clock or Clock())


def tried(source: str, clock: Clock) -> TemplateWriter:
    """Return a writer that was tried out, as a load does, and whose readings are counted from here."""
    found = writer(source, clock)
    assert not found.needs_parts
    clock.readings = 0
    return found


def text(source: str, *messages: Message, **members: Any) -> str:
    """Return the text of a chat."""
    return writer(source).text(chat(*(messages or user("hi")), **members), lambda value: value)


def test_absent_tools_are_none_and_empty_for_templates_that_go_through_them_untested() -> None:
    assert text("{{ tools is none }}") == "True"
    assert text("{% for tool in tools %}{{ tool }}{% endfor %}.") == "."


def test_absent_members_of_a_tool_are_filled_where_a_template_takes_no_gap() -> None:
    assert text("{{ tools[0] | tojson }}", tools=[BARE]) == '{"type": "function", "function": {"name": "ping"}}'
    source = "{{ tools[0].function.name + ': ' + tools[0].function.description + '.' }}"
    assert text(source, tools=[BARE]) == "ping: ."
    schema = "{{ 'x' + tools[0].function.description }}{{ tools[0].function.parameters | tojson }}"
    assert text(schema, tools=[BARE]) == 'x{"type": "object", "properties": {}, "required": []}'


def test_absent_descriptions_of_parameters_are_filled_too() -> None:
    source = "{% for key, value in tools[0].function.parameters.properties | items %}{{ value.type + ':' }}"
    assert text(source + "{{ '-' + value.description }}{% endfor %}", tools=[LOOK_UP]) == "string:-"


@pytest.mark.parametrize("properties", [True, {"word": True}])
def test_schemas_that_are_no_objects_are_left_as_they_are(properties: object) -> None:
    odd = Tool("function", Function("f", "", {"properties": properties}))
    source = "{{ '' + tools[0].function.description }}{{ tools[0].function.parameters.properties }}"
    assert text(source, tools=[odd]) == str(properties)


def test_content_beside_calls_is_empty_for_templates_that_take_its_length() -> None:
    source = "{% if messages[0].content is none or messages[0].content | length == 0 %}empty{% endif %}"
    assert text(source, calls(call("f", "{}"))) == "empty"
    assert text(source + "{{ messages[0].content | length }}", calls(call("f", "{}"))) == "empty0"


def test_content_is_a_list_of_parts_for_templates_that_show_no_other() -> None:
    parts = (
        "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
        "{% endif %}{% endfor %};{% endfor %}"
    )
    assert text(parts, Message("system", "Be kind."), *user("Hi")) == "system:Be kind.;user:Hi;"
    failing = parts.replace("{{ m.role }}", "{{ m.content[0]['type'] + '-' }}")
    assert text(failing, *user("Hi")) == "text-:Hi;"
    assert text("{{ messages[0].content is string }}{{ messages[0].content }}", *user("Hi")) == "TrueHi"
    assert text("{{ messages[0].content is string }}", *user("Hi")) == "True"


def test_functions_are_a_list_and_json_as_text() -> None:
    assert text("{{ '\n' + functions }}", tools=[BARE]) == '\n[\n    {\n        "name": "ping"\n    }\n]'
    assert text("{{ functions + '!' }}", tools=[BARE]).endswith("]!")
    assert text("{{ (functions + [1]) | length }}{% for f in functions %}{{ f.name }}{% endfor %}", tools=[BARE]) == (
        "2ping"
    )
    assert text("{{ functions is defined }}") == "False"
    assert text("{{ 'none: ' + functions }}") == "none: []"


def test_a_template_changes_its_lists_and_the_next_chat_does_not_notice() -> None:
    queue = "{% set n = namespace(ids=[], deep={'a': [[]]}) %}{% set _ = n.ids.append(messages[0].content) %}"
    assert text(queue + "{{ n.ids.pop() }}{{ n.ids }}") == "hi[]"
    assert text(queue + "{% set _ = n.deep.a[0].append(1) %}{{ n.deep.a }}") == "[[1]]"
    for own in ("messages + [1]", "messages[:1]", "messages | list", "[] + []"):
        assert text("{% set l = " + own + " %}{% set _ = l.append(7) %}{{ l[-1] }}{{ messages | length }}") == "71"
    adding = writer("{% set _ = x.append(1) %}{{ messages.append(x) }}{{ x }}{{ messages | length }}")
    asked = chat(*user("hi"), template_args={"x": [7]})
    assert [adding.text(asked, deepcopy) for _ in range(2)] == ["None[7, 1]2"] * 2


def test_a_list_that_contains_itself_is_refused_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="Circular"):
        text("{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}")


def test_generators_are_written_as_json() -> None:
    assert text("{{ messages | map(attribute='role') | tojson }}") == '["user"]'


def test_a_form_that_fails_is_followed_by_one_other() -> None:
    clock = Clock()
    failing = tried("{{ nothing.at_all }}", clock)
    with pytest.raises(Exception, match="nothing"):
        failing.text(chat(*user("hi")), lambda value: value)
    assert clock.readings == 2


def test_the_words_of_a_template_come_before_other_errors() -> None:
    refuses_tools = "{% if tools is none %}{{ raise_exception('no tools given') }}{% endif %}{{ nothing.at_all }}"
    refuses_later = "{% if tools is none %}{{ nothing.at_all }}{% endif %}{{ raise_exception('roles alternate') }}"
    for source, words in ((refuses_tools, "no tools given"), (refuses_later, "roles alternate")):
        with pytest.raises(TemplateRefusal, match=words):
            text(source)


def test_a_system_message_goes_into_the_first_turn_of_models_without_one() -> None:
    said = (Message("system", "Be kind."), Message("user", "Hi"), Message("assistant", "Yes"))
    dropping = "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endfor %}"
    for source in (NO_SYSTEM, dropping):
        assert text(source, *said) == "user:Be kind.\n\nHi;assistant:Yes;"
    assert text(TURNS, *said) == "system:Be kind.;user:Hi;assistant:Yes;"
    assert text(NO_SYSTEM, said[0]) == "user:Be kind.;"
    parts = Message("user", [TextPart("H"), TextPart("i")])
    assert text(NO_SYSTEM, said[0], parts) == "user:Be kind.\n\nHi;"


def test_a_developers_message_is_the_systems_where_a_template_has_no_place_for_it() -> None:
    said = (Message("developer", "Be kind."), Message("user", "Hi"))
    assert text(TURNS, *said) == "system:Be kind.;user:Hi;"
    assert text(NO_SYSTEM, *said) == "user:Be kind.\n\nHi;"
    assert text("{# #}{% if messages[0].role == 'developer' %}{% endif %}" + TURNS, *said) == (
        "developer:Be kind.;user:Hi;"
    )


def test_a_template_that_takes_no_short_chat_keeps_its_system_message() -> None:
    source = "{% if messages | length < 3 %}{{ raise_exception('too short') }}{% endif %}" + TURNS
    said = (Message("system", "Be kind."), *user("a", "b"))
    assert text(source, *said) == "system:Be kind.;user:a;user:b;"


@pytest.mark.parametrize("shown", ["m.tool_calls", "m.tool_calls[:1]", "[]"])
def test_calls_are_shown_one_by_one_where_a_template_shows_one_an_answer(shown: str) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% if m.tool_calls is defined %}{% for c in " + shown + " %}"
        "<{{ c.function.name }}>{% endfor %}{% endif %};{% endfor %}"
    )
    refusing = "{% for m in messages if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endfor %}"
    two = calls(call("f", "{}", key="a"), call("g", "{}", key="b"))
    said = (two, Message("tool", "1", tool_call_id="a"), Message("tool", "2", tool_call_id="b"))
    texts = {"m.tool_calls": "<f><g>;1;2;", "m.tool_calls[:1]": "<f>;1;<g>;2;", "[]": ";1;2;"}
    assert text(source, *said) == texts[shown]
    if shown != "[]":
        assert text(refusing + source, *said) == "<f>;1;<g>;2;"


def test_a_template_gets_that_calls_are_not_parallel() -> None:
    source = "{{ parallel_tool_calls is defined }}{{ parallel_tool_calls }}"
    assert (text(source), text(source, parallel=False)) == ("False", "TrueFalse")


def test_today_is_the_clocks() -> None:
    assert text("{{ date_string }}|{{ datetime }}|{{ strftime_now('%d.%m.%Y') }}") == (
        "07 Jan 2030|Jan 07 2030|07.01.2030"
    )
    assert text("{{ date_string }}", template_args={"date_string": "then"}) == "then"


def test_thoughts_are_in_the_members_that_a_template_reads() -> None:
    turn = Message("assistant", "Yes", reasoning="hm")
    assert text("{{ messages[0] | tojson }}", turn) == (
        '{"role": "assistant", "content": "Yes", "reasoning_content": "hm"}'
    )
    for member in ("reasoning", "thinking", "thought"):
        assert text("{{ messages[0]." + member + " }}", turn) == "hm"
        assert text("{{ messages[0].get('" + member + "') }}", turn) == "hm"


PARTS = (
    "{% if messages[0].content is string %}{{ messages[0].content }}{% else %}{% for part in messages[0].content %}"
    "{% if part['type'] == 'thinking' %}[{{ part['thinking'] }}]{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}"
)


def test_thoughts_are_parts_of_content_where_a_template_reads_them_there() -> None:
    assert text(PARTS, Message("assistant", "Yes", reasoning="hm")) == "[hm]Yes"
    assert text(PARTS, calls(call("f", "{}"), reasoning="hm")) == "[hm]"
    assert text(PARTS, Message("assistant", "Yes")) == "Yes"
    assert text(PARTS + "{{ messages[0].reasoning_content }}", Message("assistant", "Yes", reasoning="hm")) == "Yeshm"


def test_text_beside_a_call_joins_the_thought_where_a_template_takes_either() -> None:
    source = (
        "{% if messages[0].content and messages[0].thinking %}{{ raise_exception('either') }}{% endif %}"
        "{{ messages[0].content }}{{ messages[0].thinking }}"
    )
    assert text(source, Message("assistant", "I look.", reasoning="hm", tool_calls=[call("f", "{}")])) == (
        "hm\n\nI look."
    )


@pytest.mark.parametrize(
    ("variable", "shown"),
    [("clear_thinking", "False"), ("truncate_history_thinking", "False"), ("preserve_thinking", "True")],
)
def test_templates_show_the_thoughts_of_all_earlier_answers_that_a_client_sends(variable: str, shown: str) -> None:
    source = "{{ " + variable + " is defined }}{{ " + variable + " }}"
    assert text(source, Message("assistant", "Yes", reasoning="hm")) == f"True{shown}"
    assert text(source, Message("assistant", "Yes")) == "False"
    given = {"template_args": {variable: "mine"}}
    assert text(source, Message("assistant", "Yes", reasoning="hm"), **given) == "Truemine"
