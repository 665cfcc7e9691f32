"""Chats into tokens: control tokens are the template's own, never the client's."""

import base64
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest

from car_base.ipc.refusal import Refusal
from car_base.ipc.types import Tags
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.image_prompt import Counts, take_images
from car_engine.prompt.template import InvalidTemplate
from car_protocol.conversation import ImagePart, Message, TextPart
from tests.engine.images.pictures import png
from tests.engine.prompt.chats import call, calls, chat, opened, result, tool, user
from tests.engine.prompt.fakes import FakeVocabulary

MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
LOOKUP = tool("look_up", "Look <a> word up", {"word": {"type": "string"}})


def rendered(source: str, *messages: Message, **members: Any) -> str:
    """Return the text that a template makes of a chat."""
    vocabulary = FakeVocabulary(["<s>", "</s>"], begin="<s>", end="</s>")
    asked = chat(*(messages or user("hi")), **members)
    return vocabulary.written(opened(source, vocabulary).render(asked).tokens)


def fault(source: str, *messages: Message, **members: Any) -> dict[str, object]:
    """Return the data of the error that a chat brings."""
    with pytest.raises(Refusal) as error:
        rendered(source, *messages, **members)
    assert error.value.reason == "invalid_params"
    return {name: value for name, value in error.value.data.items() if name != "why"}


def why(source: str, *messages: Message) -> object:
    """Return the words of the error that a chat brings."""
    with pytest.raises(Refusal) as error:
        rendered(source, *messages)
    return error.value.data["why"]


def test_a_begin_token_is_added_where_the_model_wants_one_and_the_template_writes_none() -> None:
    vocabulary = FakeVocabulary(["<s>"], begin="<s>", adds_begin=True)
    for source in (PLAIN, "{{ bos_token }}" + PLAIN):
        tokens = opened(source, vocabulary).render(chat(*user("hi"))).tokens
        assert vocabulary.written(tokens) == "<s>hi"


def test_the_parts_of_a_message_are_one_text() -> None:
    assert rendered(PLAIN, Message("user", [TextPart("one "), TextPart("two")])) == "one two"


@pytest.mark.parametrize("escaped", [r"\ufdd0", r"\uFDD0"])
def test_marks_that_arguments_escape_are_the_clients(escaped: str) -> None:
    made = calls(call("f", f'{{"a": "<s>{escaped}"}}'))
    assert rendered("{{ messages[0].tool_calls[0].function.arguments.a }}", made) == "<s>\ufdd0"


def test_marks_that_a_template_writes_are_its_own() -> None:
    assert rendered("\ufdd0" + PLAIN, *user("<b>")) == "\ufdd0<b>"


def test_a_conversation_that_holds_all_marks_is_refused() -> None:
    assert fault(PLAIN, *user("".join(MARKS))) == {"param": "messages"}


def test_no_text_in_any_member_of_a_chat_is_parsed_for_control_tokens() -> None:
    vocabulary = FakeVocabulary(["<s>"])
    template = opened("{{ [messages, tools, more] | tojson }}", vocabulary)
    messages = (
        Message("user", "<s>", name="<s>"),
        calls(call("<s>", '{"<s>": "<s>"}', key="<s>"), reasoning="<s>"),
        result("<s>", key="<s>"),
    )
    asked = chat(*messages, tools=[tool("<s>", "<s>", {"<s>": ["<s>"]})], template_args={"more": {"<s>": ["<s>"]}})
    tokens = template.render(asked).tokens
    assert vocabulary.written(tokens).count("<s>") == 15
    assert not vocabulary.controls(tokens)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ 5 | dictsort }}",
        "{% set n = namespace(a=1) %}{{ raise_exception([n]) }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% for i in range(1000000) %}{% endfor %}",
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


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n{% if %}", "line 2: Expected an expression, got 'end of statement block'"),
        ("{{ x | nothing }}", "line 1: No filter named 'nothing'."),
        ("{{" + "(" * 5000 + ")" * 5000 + "}}", "maximum recursion depth exceeded"),
        ("{{ 1" + " + 1" * 20_000 + "}}", "maximum recursion depth exceeded"),
        ("{% for a in b %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks"),
    ],
)
def test_a_template_that_does_not_compile_is_refused_with_jinjas_own_words(source: str, words: str) -> None:
    with pytest.raises(InvalidTemplate) as error:
        opened(source, FakeVocabulary(["<s>"]))
    assert str(error.value).startswith(f"is not valid Jinja: {words}")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n{{ raise_exception('roles must alternate') }}", "line 2: roles must alternate"),
        ("{{ messages.x.y }}", "line 1: 'list object' has no attribute 'x'"),
        ("{% macro f() %}{{ f() }}{% endmacro %}\n{{ f() }}", "line 1: maximum recursion depth exceeded"),
    ],
)
def test_a_chat_that_does_not_render_is_refused_with_the_templates_own_words(source: str, words: str) -> None:
    assert str(why(source)).startswith(words)


def test_the_words_of_a_template_are_cut_and_have_no_marks() -> None:
    assert why("{{ raise_exception(messages[0].content) }}", *user("<s>" + 999 * "a")) == "line 1: <s>" + 297 * "a"


@pytest.mark.parametrize("source", ["{{ raise_exception('no') }}", "{{ messages[1].x.y }}"])
def test_a_template_may_refuse_the_short_chat_with_which_it_is_tried_out(source: str) -> None:
    assert not opened(source, FakeVocabulary(["<s>"])).takes_tools


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


def test_the_template_gets_that_reasoning_is_off() -> None:
    assert rendered("{{ enable_thinking }}", reasoning="off") == "False"


@pytest.mark.parametrize("ending", ["<think>", "<think>\n", "<think>\n\n"])
def test_a_prompt_that_opens_a_thought_is_inside_it(ending: str) -> None:
    template = opened(PLAIN + "{{ '" + ending.replace("\n", "\\n") + "' }}", FakeVocabulary([]))
    assert template.format.thinking == Tags("<think>", "</think>")
    assert template.render(chat(*user("hi"))).inside
    off = template.render(chat(*user("hi"), reasoning="off"))
    assert (bytes(off.tokens).decode(), off.inside) == ("hi<think>\n\n</think>\n\n", False)


def test_a_thought_that_is_closed_is_not_inside() -> None:
    template = opened(PLAIN + "{{ '<think></think>' }}", FakeVocabulary([]))
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
    assert opened(source, FakeVocabulary([])).takes_tools is takes


def test_a_chat_that_is_too_long_with_its_tools_is_refused_before_it_is_cut() -> None:
    vocabulary = FakeVocabulary(["<s>", "</s>"], begin="<s>", end="</s>")
    template = opened("{{ tools | tojson }}" + PLAIN, vocabulary)
    for size, fits in ((150, False), (1000, True)):
        with nullcontext() if fits else pytest.raises(Refusal, match="context_exceeded"):
            template.render(chat(*user("hi" * 50), tools=[LOOKUP]), ContextLimit(size, 1))


def test_a_continued_chat_ends_where_the_text_of_its_last_message_does() -> None:
    turns = "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}</s>{% endfor %}"
    source = turns + "{% if add_generation_prompt %}<s>assistant: {% endif %}"
    said = (*user("hi"), Message("assistant", "well, "))
    assert rendered(source, *said) == "<s>user: hi</s><s>assistant: well, </s><s>assistant: "
    assert rendered(source, *said, continue_last=True) == "<s>user: hi</s><s>assistant: well, "


def test_blanks_and_control_tokens_of_a_continued_text_stay_as_they_are() -> None:
    source = "{% for message in messages %}{{ message.content | trim }}</s>{% endfor %}"
    vocabulary = FakeVocabulary(["<s>", "</s>"])
    asked = chat(*user("a"), Message("assistant", "<s>b "), continue_last=True)
    tokens = opened(source, vocabulary).render(asked).tokens
    assert (vocabulary.written(tokens), vocabulary.controls(tokens)) == ("a</s><s>b ", ["</s>"])


def test_a_template_that_does_not_show_the_last_message_cannot_continue_it() -> None:
    source = "{{ messages[0].content }}"
    said = (*user("hi"), Message("assistant", "well"))
    assert fault(source, *said, continue_last=True) == {"param": "continue_last"}


@pytest.mark.parametrize(("text", "inside"), [("<think>so", True), ("<think>so</think>well", False), ("well", False)])
def test_a_continued_text_may_end_inside_a_thought(text: str, inside: bool) -> None:
    template = opened(PLAIN + "{# <think> #}", FakeVocabulary([]))
    said = chat(*user("hi"), Message("assistant", text), continue_last=True)
    assert template.render(said).inside == inside


ASKING = (
    "{% for message in messages %}<m>{{ message.content }}{% endfor %}{% if add_generation_prompt %}<m>A:{% endif %}"
)


# Each message has a header, as the answer has.
HEADED = (
    "{% for message in messages %}<m>{{ message.role }}:{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<m>assistant:{% endif %}"
)


@pytest.mark.parametrize(
    ("source", "members", "tail"),
    [
        (ASKING, {}, 2),  # two letters; the control token begins an answer too
        (ASKING + "{% if add_generation_prompt and brief %}<t>{% endif %}", {"template_args": {"brief": True}}, 3),
        (HEADED, {}, 1),
        (HEADED + "{% if add_generation_prompt %}<t>{% endif %}", {}, 1),
        (HEADED + "{% if add_generation_prompt %}<t>\n\n<m>{% endif %}", {}, 4),
        (HEADED + "{% if not add_generation_prompt %}{{ messages[2].content }}{% endif %}", {}, 1),
        (ASKING, {"continue_last": True}, 1),
        (PLAIN, {}, 1),
    ],
)
def test_the_last_tokens_that_the_next_turn_does_not_have_are_counted(
    source: str, members: dict[str, Any], tail: int
) -> None:
    vocabulary = FakeVocabulary(["<m>", "<t>"])
    said = [*user("hi"), Message("assistant", "so")] if "continue_last" in members else user("<m>A:")
    assert opened(source, vocabulary).render(chat(*said, **members)).own[0] == tail


SYSTEM_TEXT = Message("system", "hi, you")


@pytest.mark.parametrize(
    ("said", "own"),
    [
        ([SYSTEM_TEXT, *user("hi")], (2, 5)),  # its text, and what asks for the answer
        ([SYSTEM_TEXT, Message("developer", "Be brief"), *user(" hi ")], (2, 6)),
        (user("<m>A:"), (2, 8)),  # a text that names control tokens
        (user("A"), (2, 4)),  # a letter that asks for the answer, too
        (user(" "), (2,)),
        ([SYSTEM_TEXT, *user("a page"), *user("hi")], (2, 5, 12)),  # from the question, and from the page
        ([*user("hi"), Message("assistant", "so"), *user("then")], (2,)),  # its beginning is that of its first turn
        ([SYSTEM_TEXT], (2,)),
    ],
)
def test_the_tokens_that_other_chats_with_the_same_beginning_lack_are_counted_in_the_first_turn(
    said: list[Message], own: tuple[int, ...]
) -> None:
    vocabulary = FakeVocabulary(["<m>", "<t>"])
    assert opened(ASKING, vocabulary).render(chat(*said)).own == own


@pytest.mark.parametrize("text", ["hi", "A", ""])
@pytest.mark.parametrize("before", ["", "so: "])
def test_an_image_belongs_to_the_first_turn_and_not_to_the_beginning_of_other_chats(before: str, text: str) -> None:
    shown = base64.b64encode(png(4, 4, (1, 0, 0))).decode()
    said = Message("user", [TextPart(before), ImagePart(shown), TextPart(text)])
    taken = take_images(chat(SYSTEM_TEXT, said), Counts(lambda _: 10), 100)
    assert taken is not None
    rendered = opened(ASKING, FakeVocabulary(["<m>", "<t>"])).render_images(taken)
    _, beginning = rendered.own
    assert beginning == len(before) + 10 + len(text) + 3  # and what asks for the answer
    assert rendered.starts[0] == len(rendered.tokens) - beginning + len(before)


def test_a_beginning_that_is_cut_otherwise_before_other_texts_is_no_place_to_go_on_from() -> None:
    class Merging(FakeVocabulary):
        def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
            tokens = super().tokenize(text, add_special=add_special, parse_special=parse_special)
            pairs = pairwise([0, *tokens])
            return [token for before, token in pairs if (before, token) != (ord(":"), ord("i"))]

    source = "<m>user:{{ messages[0].content }}{% if add_generation_prompt %}<m>A:{% endif %}"
    template = opened(source, Merging(["<m>"]))
    assert template.render(chat(*user("it"))).own == (1,)
    assert template.render(chat(*user("so"))).own == (1, 5)
