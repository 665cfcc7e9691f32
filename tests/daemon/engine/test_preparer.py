"""Prompts into tokens, and what is refused before it may wait."""

from array import array

import pytest

from car_daemon.engine.frames import (
    Detokenize,
    FromEngine,
    PlainText,
    Prepare,
    Prepared,
    Refused,
    TokenIds,
    Tokenize,
)
from car_daemon.engine.inbox import Inbox
from car_daemon.engine.preparer import Job, Preparer, Refusal
from car_protocol.infer import Message

CONTEXT = 32


class FakeTokenizer:
    """One token a byte; with `adds_begin` token 0 goes first."""

    size = 256
    longest_piece = 2

    def __init__(self, *, adds_begin: bool = True) -> None:
        self._begin = [0] if adds_begin else []
        self.parsed: list[bool] = []

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Cut text into bytes."""
        self.parsed.append(parse_special)
        return [*(self._begin if add_special else []), *text.encode()]

    def detokenize(self, tokens: list[int], *, special: bool) -> str:
        """Write bytes out."""
        return bytes(tokens).decode() + ("!" if special else "")


def render(messages: list[Message]) -> list[int]:
    """Render a conversation: one token a message; a single `nothing` has none."""
    return [] if messages[0].text == "nothing" else [7] * len(messages)


def refuse(messages: list[Message]) -> list[int]:
    """Refuse a conversation as a template does."""
    raise Refusal("invalid_params", param="messages")


def prepare(
    prompt: str | None = None,
    *,
    tokens: list[int] | None = None,
    messages: list[Message] | None = None,
    max_tokens: int | None = None,
    parse_special: bool = False,
) -> Prepare:
    return Prepare(
        key=1, prompt=prompt, tokens=tokens, messages=messages, parse_special=parse_special, max_tokens=max_tokens
    )


def preparer(tokenizer: FakeTokenizer | None = None) -> Preparer:
    return Preparer(tokenizer or FakeTokenizer(), render, CONTEXT, Inbox(), lambda _: None)


def tokens_of(answer: FromEngine) -> list[int]:
    assert isinstance(answer, Prepared)
    return array("i", answer.tokens).tolist()


def refused(answer: FromEngine) -> tuple[str, dict[str, object]]:
    assert isinstance(answer, Refused)
    return answer.reason, answer.data


def test_a_prompt_is_tokenized_with_its_begin_token() -> None:
    assert tokens_of(preparer().answer(prepare("ab"))) == [0, 97, 98]


@pytest.mark.parametrize("parse_special", [False, True])
def test_control_tokens_in_a_prompt_are_parsed_only_where_asked(parse_special: bool) -> None:
    tokenizer = FakeTokenizer()
    preparer(tokenizer).answer(prepare("ab", parse_special=parse_special))
    assert tokenizer.parsed == [parse_special]


def test_given_tokens_are_taken_as_they_are() -> None:
    assert tokens_of(preparer().answer(prepare(tokens=[5, 6]))) == [5, 6]


def test_a_conversation_is_rendered_by_the_template() -> None:
    assert tokens_of(preparer().answer(prepare(messages=[Message("user", "hi")] * 2))) == [7, 7]


def test_without_a_template_a_conversation_is_refused() -> None:
    answer = Preparer(FakeTokenizer(), None, CONTEXT, Inbox(), lambda _: None).answer(
        prepare(messages=[Message("user", "hi")])
    )
    assert refused(answer) == ("model_unavailable", {"lacks": "chat_template"})


def test_a_conversation_that_its_template_refuses_is_an_error_of_the_request() -> None:
    job = prepare(messages=[Message("user", "hi")])
    answer = Preparer(FakeTokenizer(), refuse, CONTEXT, Inbox(), lambda _: None).answer(job)
    assert refused(answer) == ("invalid_params", {"param": "messages"})


def test_a_conversation_that_renders_to_nothing_is_refused() -> None:
    answer = preparer().answer(prepare(messages=[Message("user", "nothing")]))
    assert refused(answer) == ("invalid_params", {"param": "messages"})


def test_a_prompt_without_any_token_is_refused() -> None:
    answer = preparer(FakeTokenizer(adds_begin=False)).answer(prepare(""))
    assert refused(answer) == ("invalid_params", {"param": "prompt"})


@pytest.mark.parametrize("token", [256, 2**31 - 1])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    assert refused(preparer().answer(prepare(tokens=[1, token]))) == ("invalid_params", {"param": "tokens"})


@pytest.mark.parametrize(("prompt", "asked", "given"), [(3, 8, 8), (3, 29, 29), (3, None, 29), (31, None, 1)])
def test_max_tokens_is_what_was_asked_or_what_fits(prompt: int, asked: int | None, given: int) -> None:
    answer = preparer().answer(prepare(tokens=[1] * prompt, max_tokens=asked))
    assert isinstance(answer, Prepared)
    assert answer.max_tokens == given


def test_max_tokens_is_256_where_more_would_fit() -> None:
    answer = Preparer(FakeTokenizer(), render, 4096, Inbox(), lambda _: None).answer(prepare("ab"))
    assert isinstance(answer, Prepared)
    assert answer.max_tokens == 256


@pytest.mark.parametrize(("prompt", "asked"), [(32, None), (33, None), (3, 30), (32, 1)])
def test_what_does_not_fit_the_context_is_refused_with_all_figures(prompt: int, asked: int | None) -> None:
    answer = preparer().answer(prepare(tokens=[1] * prompt, max_tokens=asked))
    facts = {"prompt_tokens": prompt, "max_tokens": asked, "context_tokens": CONTEXT}
    assert refused(answer) == ("context_exceeded", facts)


def test_text_that_fits_under_no_tokenization_is_refused_without_being_tokenized() -> None:
    tokenizer = FakeTokenizer()
    long = "x" * (CONTEXT * tokenizer.longest_piece + 1)
    facts = {"prompt_tokens": None, "max_tokens": 8, "context_tokens": CONTEXT}
    for job in (prepare(long, max_tokens=8), prepare(messages=[Message("user", long)], max_tokens=8)):
        assert refused(preparer(tokenizer).answer(job)) == ("context_exceeded", facts)
    assert tokenizer.parsed == []


def test_text_is_tokenized_and_written_out() -> None:
    assert preparer().answer(Tokenize(5, "ab", True, False)) == TokenIds(5, [0, 97, 98])
    assert preparer().answer(Detokenize(6, [97], special=False)) == PlainText(6, "a")
    assert preparer().answer(Detokenize(6, [97], special=True)) == PlainText(6, "a!")


def test_writing_out_a_token_outside_the_vocabulary_is_refused() -> None:
    assert refused(preparer().answer(Detokenize(6, [256], special=False))) == ("invalid_params", {"param": "tokens"})


def test_jobs_are_answered_in_order_until_there_are_no_more() -> None:
    inbox: Inbox[Job | None] = Inbox()
    answers: list[FromEngine] = []
    for job in (Tokenize(1, "a", False, False), Detokenize(2, [98], special=False), None):
        inbox.put(job)
    Preparer(FakeTokenizer(), render, CONTEXT, inbox, answers.append).run()
    assert answers == [TokenIds(1, [97]), PlainText(2, "b")]
