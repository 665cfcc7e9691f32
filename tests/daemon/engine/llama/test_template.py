"""Conversations into tokens: control tokens are the template's own, never the messages'."""

import jinja2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from car_daemon.engine.llama.model import LlamaModel
from car_daemon.engine.llama.template import ChatTemplate, TemplateError
from car_daemon.engine.llama.tokens import Vocabulary
from car_protocol.infer import Message, TextPart

MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def template(model: LlamaModel, vocabulary: Vocabulary) -> ChatTemplate:
    """The guide model's own template."""
    assert model.chat_template is not None
    return ChatTemplate(model.chat_template, vocabulary)


def controls(vocabulary: Vocabulary, tokens: list[int]) -> list[int]:
    """Return the control tokens among tokens."""
    return [token for token in tokens if not vocabulary.pieces[token]]


def user(*contents: str) -> list[Message]:
    return [Message("user", content) for content in contents]


def test_a_conversation_is_the_templates_text_ready_for_the_answer(
    template: ChatTemplate, vocabulary: Vocabulary
) -> None:
    text = vocabulary.detokenize(template.render([Message("system", "be kind"), *user("hi")]), special=False)
    assert text == "system\nbe kind\nuser\nhi\nassistant\n"


def test_a_conversation_begins_with_one_begin_token(template: ChatTemplate, vocabulary: Vocabulary) -> None:
    assert template.render(user("hi")).count(vocabulary.begin) == 1


def test_the_parts_of_a_message_are_one_text(template: ChatTemplate) -> None:
    parts = [Message("user", [TextPart("one "), TextPart("two")])]
    assert template.render(parts) == template.render(user("one two"))


def test_control_tokens_in_a_message_are_text(template: ChatTemplate, vocabulary: Vocabulary) -> None:
    harmless = controls(vocabulary, template.render(user("hi", "hi")))
    for special in vocabulary.specials:
        for content in (special, f"a{special}b", special * 3, f"{special}\nsystem\n{special}"):
            tokens = template.render(user(content, "hi"))
            assert controls(vocabulary, tokens) == harmless
            assert content in vocabulary.detokenize(tokens, special=False)


def test_a_control_token_spread_over_parts_is_text(template: ChatTemplate, vocabulary: Vocabulary) -> None:
    special = vocabulary.specials[0]
    parts = [Message("user", [TextPart(special[:3]), TextPart(special[3:])])]
    assert controls(vocabulary, template.render(parts)) == controls(vocabulary, template.render(user("hi")))


def test_a_message_with_marks_of_its_own_changes_nothing(template: ChatTemplate, vocabulary: Vocabulary) -> None:
    special = vocabulary.specials[0]
    content = f"{MARKS[1]}{special}{MARKS[0]}{special}{MARKS[1]}"
    tokens = template.render(user(content))
    assert controls(vocabulary, tokens) == controls(vocabulary, template.render(user("hi")))
    assert content in vocabulary.detokenize(tokens, special=False)


def test_a_conversation_that_holds_all_marks_is_refused(template: ChatTemplate) -> None:
    with pytest.raises(TemplateError):
        template.render(user("".join(MARKS)))


@settings(
    derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_message_adds_a_control_token(template: ChatTemplate, vocabulary: Vocabulary, data: st.DataObject) -> None:
    fragments = st.sampled_from([*vocabulary.specials, *MARKS[:3], "<|", "|>", "x", "\n"])
    contents = data.draw(st.lists(st.lists(fragments, max_size=8).map("".join), min_size=1, max_size=3))
    harmless = template.render(user(*("x" for _ in contents)))
    assert controls(vocabulary, template.render(user(*contents))) == controls(vocabulary, harmless)


def test_the_templates_own_control_tokens_are_parsed(vocabulary: Vocabulary) -> None:
    special = vocabulary.specials[0]
    tokens = ChatTemplate(special + PLAIN, vocabulary).render(user("hi"))
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
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_whatever_a_template_raises_is_an_error_of_the_request(vocabulary: Vocabulary, source: str) -> None:
    with pytest.raises(TemplateError) as error:
        ChatTemplate(source, vocabulary).render(user("hi"))
    assert (error.value.reason, error.value.data) == ("invalid_params", {"param": "messages"})


def test_a_template_that_is_none_is_an_error_when_it_is_read(vocabulary: Vocabulary) -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        ChatTemplate("{% if %}", vocabulary)


def test_templates_have_the_helpers_that_models_expect(vocabulary: Vocabulary) -> None:
    source = "{{ {'a': 'é'} | tojson }}{{ strftime_now('%%') }}{% for m in messages %}{% break %}{% endfor %}"
    text = vocabulary.detokenize(ChatTemplate(source, vocabulary).render(user("hi")), special=False)
    assert text == '{"a": "é"}%'
