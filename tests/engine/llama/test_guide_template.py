"""Conversations through the built-in model's own template: control tokens are the template's, never the client's."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from car_engine.llama.model import LlamaModel
from car_engine.llama.tokens import Vocabulary
from car_engine.prompt.template import ChatTemplate
from car_protocol.conversation import Message, TextPart
from tests.engine.prompt.chats import chat, opened, user

MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def template(model: LlamaModel, vocabulary: Vocabulary) -> ChatTemplate:
    """The guide model's own template."""
    assert model.metadata.chat_template is not None
    return opened(model.metadata.chat_template, vocabulary)


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


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_message_adds_a_control_token(template: ChatTemplate, vocabulary: Vocabulary, data: st.DataObject) -> None:
    fragments = st.sampled_from([*vocabulary.specials, *MARKS[:3], "<|", "|>", "x", "\n"])
    contents = data.draw(st.lists(st.lists(fragments, max_size=8).map("".join), min_size=1, max_size=3))
    harmless = controls(vocabulary, template.render(chat(*user(*("x" for _ in contents)))).tokens)
    assert controls(vocabulary, template.render(chat(*user(*contents))).tokens) == harmless


def test_the_templates_own_control_tokens_are_parsed(vocabulary: Vocabulary) -> None:
    special = vocabulary.specials[0]
    tokens = opened(special + PLAIN, vocabulary).render(chat(*user("hi"))).tokens
    assert controls(vocabulary, tokens)[-1] == vocabulary.tokenize(special, add_special=False, parse_special=True)[0]
