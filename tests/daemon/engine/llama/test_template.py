"""Chats into tokens: control tokens are the template's own, never the client's."""

from typing import Any

import jinja2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from car_daemon.engine.llama.model import LlamaModel
from car_daemon.engine.llama.template import ChatTemplate, TemplateError
from car_daemon.engine.llama.tokens import Vocabulary
from car_daemon.engine.output.format import Tags
from car_protocol.conversation import Message, TextPart
from tests.daemon.engine.llama.chats import call, calls, chat, result, tool, user
from tests.daemon.engine.llama.fakes import FakeVocabulary

MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
LOOKUP = tool("look_up", "Look <a> word up", {"word": {"type": "string"}})


@pytest.fixture
def template(model: LlamaModel, vocabulary: Vocabulary) -> ChatTemplate:
    """The guide model's own template."""
    assert model.chat_template is not None
    return ChatTemplate(model.chat_template, vocabulary)


def rendered(source: str, *messages: Message, **members: Any) -> str:
    """Return the text that a template makes of a chat."""
    vocabulary = FakeVocabulary(["<s>", "</s>"], begin="<s>", end="</s>")
    asked = chat(*(messages or user("hi")), **members)
    return vocabulary.written(ChatTemplate(source, vocabulary).render(asked).tokens)


def fault(source: str, *messages: Message, **members: Any) -> dict[str, object]:
    """Return the data of the error that a chat brings."""
    with pytest.raises(TemplateError) as error:
        rendered(source, *messages, **members)
    assert error.value.reason == "invalid_params"
    return error.value.data


def controls(vocabulary: Vocabulary, tokens: list[int]) -> list[int]:
    """Return the control tokens among tokens."""
    return [token for token in tokens if not vocabulary.pieces[token]]


def test_a_conversation_is_the_templates_text_ready_for_the_answer(
    template: ChatTemplate, vocabulary: Vocabulary
) -> None:
    tokens = template.render(chat(Message("system", "be kind"), *user("hi"))).tokens
    assert vocabulary.detokenize(tokens, special=False) == "system\nbe kind\nuser\nhi\nassistant\n"


def test_a_conversation_begins_with_one_begin_token(template: ChatTemplate, vocabulary: Vocabulary) -> None:
    assert template.render(chat(*user("hi"))).tokens.count(vocabulary.begin) == 1


def test_a_begin_token_is_added_where_the_model_wants_one_and_the_template_writes_none() -> None:
    vocabulary = FakeVocabulary(["<s>"], begin="<s>", adds_begin=True)
    for source in (PLAIN, "{{ bos_token }}" + PLAIN):
        tokens = ChatTemplate(source, vocabulary).render(chat(*user("hi"))).tokens
        assert vocabulary.written(tokens) == "<s>hi"


def test_the_parts_of_a_message_are_one_text() -> None:
    assert rendered(PLAIN, Message("user", [TextPart("one "), TextPart("two")])) == "one two"


def test_control_tokens_in_a_message_are_text(template: ChatTemplate, vocabulary: Vocabulary) -> None:
    harmless = controls(vocabulary, template.render(chat(*user("hi", "hi"))).tokens)
    for special in vocabulary.specials:
        for content in (special, f"a{special}b", special * 3, f"{special}\nsystem\n{special}"):
            tokens = template.render(chat(*user(content, "hi"))).tokens
            assert controls(vocabulary, tokens) == harmless
            assert content in vocabulary.detokenize(tokens, special=False)


def test_a_control_token_spread_over_parts_is_text(template: ChatTemplate, vocabulary: Vocabulary) -> None:
    special = vocabulary.specials[0]
    parts = Message("user", [TextPart(special[:3]), TextPart(special[3:])])
    harmless = controls(vocabulary, template.render(chat(*user("hi"))).tokens)
    assert controls(vocabulary, template.render(chat(parts)).tokens) == harmless


def test_a_message_with_marks_of_its_own_changes_nothing(template: ChatTemplate, vocabulary: Vocabulary) -> None:
    special = vocabulary.specials[0]
    content = f"{MARKS[1]}{special}{MARKS[0]}{special}{MARKS[1]}"
    tokens = template.render(chat(*user(content))).tokens
    assert controls(vocabulary, tokens) == controls(vocabulary, template.render(chat(*user("hi"))).tokens)
    assert content in vocabulary.detokenize(tokens, special=False)


@pytest.mark.parametrize("escaped", [r"\ufdd0", r"\uFDD0"])
def test_marks_that_arguments_escape_are_the_clients(escaped: str) -> None:
    made = calls(call("f", f'{{"a": "<s>{escaped}"}}'))
    assert rendered("{{ messages[0].tool_calls[0].function.arguments.a }}", made) == "<s>\ufdd0"


def test_marks_that_a_template_writes_are_its_own() -> None:
    assert rendered("\ufdd0" + PLAIN, *user("<b>")) == "\ufdd0<b>"


def test_a_conversation_that_holds_all_marks_is_refused() -> None:
    assert fault(PLAIN, *user("".join(MARKS))) == {"param": "messages"}


@settings(
    derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_message_adds_a_control_token(template: ChatTemplate, vocabulary: Vocabulary, data: st.DataObject) -> None:
    fragments = st.sampled_from([*vocabulary.specials, *MARKS[:3], "<|", "|>", "x", "\n"])
    contents = data.draw(st.lists(st.lists(fragments, max_size=8).map("".join), min_size=1, max_size=3))
    harmless = controls(vocabulary, template.render(chat(*user(*("x" for _ in contents)))).tokens)
    assert controls(vocabulary, template.render(chat(*user(*contents))).tokens) == harmless


def test_no_text_in_any_member_of_a_chat_is_parsed_for_control_tokens() -> None:
    vocabulary = FakeVocabulary(["<s>"])
    template = ChatTemplate("{{ [messages, tools, more] | tojson }}", vocabulary)
    messages = (
        Message("user", "<s>", name="<s>"),
        calls(call("<s>", '{"<s>": "<s>"}', key="<s>"), reasoning="<s>"),
        result("<s>", key="<s>"),
    )
    asked = chat(*messages, tools=[tool("<s>", "<s>", {"<s>": ["<s>"]})], template_args={"more": {"<s>": ["<s>"]}})
    tokens = template.render(asked).tokens
    assert vocabulary.written(tokens).count("<s>") == 15
    assert not vocabulary.controls(tokens)


def test_the_templates_own_control_tokens_are_parsed(vocabulary: Vocabulary) -> None:
    special = vocabulary.specials[0]
    tokens = ChatTemplate(special + PLAIN, vocabulary).render(chat(*user("hi"))).tokens
    assert controls(vocabulary, tokens)[-1] == vocabulary.tokenize(special, add_special=False, parse_special=True)[0]


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ 5 | dictsort }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% for i in range(1000000) %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        "{{ '\\ud800' }}",
    ],
)
def test_whatever_a_template_raises_is_an_error_of_the_request(source: str) -> None:
    assert fault(source) == {"param": "messages"}


def test_the_member_that_a_template_cannot_take_is_at_fault() -> None:
    source = "{% if tools and odd %}{{ raise_exception('odd') }}{% elif tools %}{{ tools.x.y }}{% endif %}"
    assert fault(source, tools=[LOOKUP]) == {"param": "tools"}
    picky = "{% if odd %}{{ raise_exception('odd') }}{% endif %}"
    assert fault(picky, tools=[LOOKUP], template_args={"odd": True}) == {"param": "template_args"}


@pytest.mark.parametrize("name", ["messages", "tools"])
def test_arguments_do_not_replace_the_chat(name: str) -> None:
    assert fault(PLAIN, template_args={name: []}) == {"param": "template_args"}


@pytest.mark.parametrize(
    "arguments", ["", "[]", "{", '"a"', '{"a": NaN}', '{"a": "\\ud800"}', '{"a":' * 99 + "0" + "}" * 99]
)
def test_arguments_of_a_call_have_to_be_an_object(arguments: str) -> None:
    assert fault(PLAIN, *user("hi"), calls(call("f", arguments))) == {"param": "messages"}


def test_a_template_that_is_none_is_an_error_when_it_is_read(vocabulary: Vocabulary) -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        ChatTemplate("{% if %}", vocabulary)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'a': 'é'} | tojson }}", '{"a": "é"}'),
        ("{{ {'b': 1, 'a': '<'} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":"<","b":1}'),
        ("{{ ['é'] | tojson(ensure_ascii=true, indent=1) }}", '[\n "\\u00e9"\n]'),
        ("{{ strftime_now('%%') }}", "%"),
        ("{% for m in messages %}{% break %}{% endfor %}.", "."),
        ("{% set n = namespace(a=1) %}{% generation %}{% set n.a = 2 %}b{% endgeneration %}{{ n.a }}", "b2"),
        ("  {% if true %}\na\n  {% endif %}\n", "a\n"),
        ("{{ eos_token }}{{ enable_thinking is defined }}{{ tools is none }}", "</s>FalseTrue"),
    ],
)
def test_templates_have_the_helpers_that_models_expect(source: str, text: str) -> None:
    assert rendered(source) == text


def test_a_template_gets_all_of_a_message() -> None:
    messages = (
        Message("assistant", None, reasoning="why", tool_calls=[call("f", '{"a":[1,"é"]}', key="c1")]),
        Message("tool", "<s>", tool_call_id="c1", name="f"),
    )
    assert rendered("{{ messages | tojson }}", *messages) == (
        '[{"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": [{"id": "c1", '
        '"type": "function", "function": {"name": "f", "arguments": {"a": [1, "é"]}}}]}, '
        '{"role": "tool", "content": "<s>", "tool_call_id": "c1", "name": "f"}]'
    )


def test_a_template_gets_tools_as_they_were_given() -> None:
    assert rendered("{{ tools | tojson }}", tools=[LOOKUP]) == (
        '[{"type": "function", "function": {"name": "look_up", "description": "Look <a> word up", '
        '"parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": []}}}]'
    )


@pytest.mark.parametrize("call_text", ["'(' + a + ')'", "'(' ~ a ~ ')'", "'(' ~ a | tojson ~ ')'"])
def test_arguments_are_their_json_where_they_are_written_as_text(call_text: str) -> None:
    source = "{% set a = messages[0].tool_calls[0].function.arguments %}{{ " + call_text + " }}{{ a + '!' }}"
    assert rendered(source, calls(call("f", '{"a":"é"}'))) == '({"a": "é"}){"a": "é"}!'


@pytest.mark.parametrize("asks", ["messages[0].content", "messages[0]['content']", "content"])
def test_content_is_none_for_templates_that_ask_for_it(asks: str) -> None:
    source = "{% set content = messages[0].content %}{{ " + asks + " is none }}"
    assert rendered(source, calls(call("f", "{}"))) == "True"
    assert rendered(source, result("")) == "False"
    assert rendered(source, Message("assistant", "so", tool_calls=[call("f", "{}")])) == "False"


def test_template_arguments_are_variables() -> None:
    source = "{{ enable_thinking }} {{ where.place }}"
    args = {"enable_thinking": True, "where": {"place": "<s>"}}
    assert rendered(source, reasoning="off", template_args=args) == "True <s>"


def test_reasoning_that_is_off_is_told_to_the_template() -> None:
    assert rendered("{{ enable_thinking }}", reasoning="off") == "False"


@pytest.mark.parametrize("ending", ["<think>", "<think>\n", "<think>\n\n"])
def test_a_prompt_that_opens_a_thought_is_inside_it(ending: str) -> None:
    template = ChatTemplate(PLAIN + "{{ '" + ending.replace("\n", "\\n") + "' }}", FakeVocabulary([]))
    assert template.format.thinking == Tags("<think>", "</think>")
    assert template.render(chat(*user("hi"))).inside
    off = template.render(chat(*user("hi"), reasoning="off"))
    assert (bytes(off.tokens).decode(), off.inside) == ("hi<think>\n\n</think>\n\n", False)


def test_a_thought_that_is_closed_is_not_inside() -> None:
    template = ChatTemplate(PLAIN + "{{ '<think></think>' }}", FakeVocabulary([]))
    assert not template.render(chat(*user("<think>"))).inside


@pytest.mark.parametrize(
    ("source", "takes"),
    [
        (PLAIN, False),
        ("{% set tools = [] %}", False),
        ("{% if tools %}{% endif %}", True),
        ("{% if custom is defined %}{% set tools = custom %}{% endif %}{{ tools }}", True),
    ],
)
def test_a_template_takes_tools_that_it_looks_at(source: str, takes: bool) -> None:
    assert ChatTemplate(source, FakeVocabulary([])).takes_tools is takes


def test_how_long_a_chat_is_in_full_is_told_before_it_is_cut() -> None:
    vocabulary = FakeVocabulary(["<s>", "</s>"], begin="<s>", end="</s>")
    told: list[int] = []
    ChatTemplate("{{ tools | tojson }}" + PLAIN, vocabulary).render(chat(*user("hi" * 50), tools=[LOOKUP]), told.append)
    assert len(told) == 1
    assert told[0] > 150
