"""Prompts into tokens, and what is refused before it may wait."""

import re
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from car_daemon.engine.form import Forms
from car_daemon.engine.frames import (
    Chat,
    Detokenize,
    FromEngine,
    PlainText,
    Prepare,
    Prepared,
    Reading,
    Refused,
    TokenIds,
    Tokenize,
)
from car_daemon.engine.grammar.constraint import ConstraintError
from car_daemon.engine.inbox import Forgotten, Inbox
from car_daemon.engine.llama.template import Rendered
from car_daemon.engine.output.format import Format, Tags
from car_daemon.engine.preparer import Job, Preparer
from car_daemon.engine.refusal import Refusal
from car_daemon.engine.sight import Carried
from car_daemon.engine.text_inputs import TextInputs
from car_protocol.conversation import Function, Message, NamedTool, Tool
from car_protocol.sampling import Dry, Sampling

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


class FakeTemplate:
    """One token a message; a single `nothing` has none, and `no` is refused."""

    def __init__(self, *, takes_tools: bool = True, form: Format | None = None, inside: bool = False) -> None:
        self.takes_tools = takes_tools
        self.format = form or Format()
        self._inside = inside

    def render(self, chat: Chat, check: Callable[[int], None]) -> Rendered:
        """Render a conversation, in full with the reasoning in it."""
        text = chat.messages[0].text
        check(sum(len(message.text + (message.reasoning or "")) for message in chat.messages))
        if text == "no":
            raise Refusal("invalid_params", param="messages")
        return Rendered([] if text == "nothing" else [7] * len(chat.messages), self._inside)

    def render_images(self, carried: Carried, check: Callable[[int], None]) -> Rendered:
        """Render a conversation with images: they alone."""
        tokens = [token for placeholder in carried.placeholders for token in placeholder]
        return Rendered(tokens, self._inside, [0])


class FakeGrammars:
    """Compiles all grammars but those that hold `bad`."""

    def __init__(self) -> None:
        self.compiled: list[str] = []

    def compile(self, text: str) -> None:
        """Take a grammar."""
        if "bad" in text:
            raise ConstraintError
        self.compiled.append(text)


def prepare(
    prompt: str | None = None,
    *,
    tokens: list[int] | None = None,
    chat: Chat | None = None,
    max_tokens: int | None = None,
    parse_special: bool = False,
    sampling: Sampling | None = None,
    grammar: str | None = None,
    json_schema: dict[str, Any] | None = None,
) -> Prepare:
    return Prepare(
        key=1,
        prompt=prompt,
        tokens=tokens,
        chat=chat,
        parse_special=parse_special,
        max_tokens=max_tokens,
        sampling=sampling or Sampling(),
        grammar=grammar,
        json_schema=json_schema,
    )


def conversation(*texts: str, **more: Any) -> Chat:
    return Chat(messages=[Message("user", text) for text in texts], **more)


DEFAULT = FakeTemplate()
TEXTS = TextInputs(
    lambda text: [*text.encode()], lambda query, text: [*query.encode(), *text.encode()], 8, 2, ranks=False
)


def preparer(
    tokenizer: FakeTokenizer | None = None,
    template: FakeTemplate | None = DEFAULT,
    grammars: FakeGrammars | None = None,
    *,
    context_tokens: int = CONTEXT,
    warm: Callable[[Sampling], None] = lambda _: None,
    forgotten: Forgotten | None = None,
    send: Callable[[FromEngine], None] = lambda _: None,
) -> Preparer:
    forms = Forms((grammars or FakeGrammars()).compile, lambda _: None)
    return Preparer(
        tokenizer or FakeTokenizer(),
        template,
        forms,
        warm,
        ["a"],
        TEXTS,
        None,
        context_tokens,
        generates=True,
        inbox=Inbox(),
        forgotten=forgotten or Forgotten(),
        send=send,
    )


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
    assert tokens_of(preparer().answer(prepare(chat=conversation("hi", "ho")))) == [7, 7]


def test_without_a_template_a_conversation_is_refused() -> None:
    answer = preparer(template=None).answer(prepare(chat=conversation("hi")))
    assert refused(answer) == ("model_unavailable", {"lacks": "chat_template"})


def test_a_conversation_that_its_template_refuses_is_an_error_of_the_request() -> None:
    answer = preparer().answer(prepare(chat=conversation("no")))
    assert refused(answer) == ("invalid_params", {"param": "messages"})


def test_a_conversation_that_renders_to_nothing_is_refused() -> None:
    answer = preparer().answer(prepare(chat=conversation("nothing")))
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
    answer = preparer(context_tokens=4096).answer(prepare("ab"))
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
    for job in (prepare(long, max_tokens=8), prepare(chat=conversation(long), max_tokens=8)):
        assert refused(preparer(tokenizer).answer(job)) == ("context_exceeded", facts)
    assert tokenizer.parsed == []


def test_text_is_tokenized_and_written_out() -> None:
    assert preparer().answer(Tokenize(5, "ab", True, False)) == TokenIds(5, [0, 97, 98])
    assert preparer().answer(Detokenize(6, [97], special=False)) == PlainText(6, "a")
    assert preparer().answer(Detokenize(6, [97], special=True)) == PlainText(6, "a!")


def test_writing_out_a_token_outside_the_vocabulary_is_refused() -> None:
    assert refused(preparer().answer(Detokenize(6, [256], special=False))) == ("invalid_params", {"param": "tokens"})


def test_jobs_are_answered_in_order() -> None:
    answers: list[FromEngine] = []
    preparer(send=answers.append).turn([Tokenize(1, "a", False, False), Detokenize(2, [98], special=False)])
    assert answers == [TokenIds(1, [97]), PlainText(2, "b")]


def test_a_job_that_nobody_waits_for_is_not_done() -> None:
    forgotten = Forgotten()
    answers: list[FromEngine] = []
    forgotten.add(1)
    jobs: list[Job] = [Tokenize(1, "a", False, False), Tokenize(2, "b", False, False)]
    preparer(forgotten=forgotten, send=answers.append).turn(jobs)
    assert answers == [TokenIds(2, [98])]


def test_a_defect_refuses_one_job_and_is_told_by_its_place_alone() -> None:
    def fail(_: Sampling) -> None:
        raise KeyError("what was asked")

    answer = preparer(warm=fail).answer(prepare("ab"))
    assert refused(answer) == ("internal_error", {})
    assert isinstance(answer, Refused)
    assert re.fullmatch(rf"KeyError at {__name__}:\d+", answer.fault or "")


THINKING = Format(Tags("<think>", "</think>"), "hermes")
TOOLS = [Tool("function", Function("f")), Tool("function", Function("g"))]


def reading_of(answer: FromEngine) -> Reading:
    assert isinstance(answer, Prepared)
    return answer.reading


def constraint_of(answer: FromEngine) -> str:
    assert isinstance(answer, Prepared)
    return answer.constraint


def test_a_thinking_model_s_answer_is_split_unless_all_is_to_be_kept() -> None:
    thinking = preparer(template=FakeTemplate(form=THINKING, inside=True))
    split = reading_of(thinking.answer(prepare(chat=conversation("hi"))))
    assert (split.thinking, split.inside, split.tools) == (THINKING.thinking, True, None)
    kept = reading_of(thinking.answer(prepare(chat=conversation("hi", reasoning="keep"))))
    assert (kept.keep, split.keep, kept.inside, kept.markers) == (True, False, True, THINKING.markers)


def test_calls_are_read_only_where_there_are_tools() -> None:
    model = preparer(template=FakeTemplate(form=THINKING))
    assert reading_of(model.answer(prepare(chat=conversation("hi", tools=TOOLS)))).tools == "hermes"
    assert reading_of(model.answer(prepare(chat=conversation("hi")))).tools is None


def test_tools_are_refused_where_the_template_does_not_show_them() -> None:
    answer = preparer(template=FakeTemplate(takes_tools=False)).answer(prepare(chat=conversation("hi", tools=TOOLS)))
    assert refused(answer) == ("model_unavailable", {"lacks": "tools"})


def test_a_call_can_be_forced_only_where_calls_can_be_read() -> None:
    chat = conversation("hi", tools=TOOLS, tool_choice="required")
    assert refused(preparer().answer(prepare(chat=chat))) == ("model_unavailable", {"lacks": "tools"})


def test_a_required_call_may_be_of_any_tool_and_a_named_one_of_that_alone() -> None:
    model = preparer(template=FakeTemplate(form=THINKING))
    required = constraint_of(model.answer(prepare(chat=conversation("hi", tools=TOOLS, tool_choice="required"))))
    named = constraint_of(model.answer(prepare(chat=conversation("hi", tools=TOOLS, tool_choice=NamedTool("g")))))
    assert ('\\"f\\"' in required, '\\"g\\"' in required) == (True, True)
    assert ('\\"f\\"' in named, '\\"g\\"' in named) == (False, True)


def test_a_grammar_is_compiled_before_the_request_may_wait() -> None:
    grammars = FakeGrammars()
    constraint = constraint_of(preparer(grammars=grammars).answer(prepare("ab", grammar='root ::= "a"')))
    assert grammars.compiled == [constraint] != [""]


def test_a_grammar_that_cannot_be_read_is_refused_with_its_line() -> None:
    reason, data = refused(preparer().answer(prepare("ab", grammar='root ::= "a"\nother ::= "b')))
    assert (reason, data["param"], data["line"]) == ("invalid_params", "grammar", 2)


@pytest.mark.parametrize("member", ["json_schema", "tools"])
def test_what_cannot_be_compiled_is_refused_by_name(member: str) -> None:
    bad = {"const": "bad"}
    tools = [Tool("function", Function("f", parameters=bad))]
    jobs = {
        "json_schema": prepare("ab", json_schema=bad),
        "tools": prepare(chat=conversation("hi", tools=tools, tool_choice="required")),
    }
    answer = preparer(template=FakeTemplate(form=THINKING)).answer(jobs[member])
    assert refused(answer) == ("invalid_params", {"param": member, "why": "it became too complex"})


def test_a_bias_for_a_token_outside_the_vocabulary_is_refused() -> None:
    assert isinstance(preparer().answer(prepare("ab", sampling=Sampling(logit_bias={"255": 1.0}))), Prepared)
    answer = preparer().answer(prepare("ab", sampling=Sampling(logit_bias={"256": 1.0})))
    assert refused(answer) == ("invalid_params", {"param": "logit_bias"})


def test_what_is_dear_to_build_is_built_before_the_request_may_wait() -> None:
    warmed: list[Sampling] = []
    sampling = Sampling(dry=Dry(1.0))
    preparer(warm=warmed.append).answer(prepare("ab", sampling=sampling))
    assert warmed == [sampling]


def test_a_conversation_that_is_rendered_too_long_is_refused_before_it_is_cut() -> None:
    chat = Chat(messages=[Message("assistant", "hi", reasoning="x" * 10_000)])
    reason, data = refused(preparer().answer(prepare(chat=chat)))
    assert (reason, data["prompt_tokens"]) == ("context_exceeded", None)
