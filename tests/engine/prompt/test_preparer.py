"""Prompts into tokens, and what is refused before it may wait."""

import base64
import re
import sys
import threading
import time
from array import array
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from typing import Any, cast

import pytest
from msgspec.structs import asdict, replace

from car_base.ipc.codec import packed_tokens, unpacked_reading
from car_base.ipc.frames import (
    Chat,
    Detokenize,
    Forget,
    FromEngine,
    ImageSlot,
    JobBegun,
    PlainText,
    Prepare,
    Prepared,
    PrepareDecision,
    Reading,
    Refused,
    RunningJob,
    TokenIds,
    Tokenize,
    TokensCounted,
)
from car_base.ipc.refusal import Refusal
from car_base.ipc.types import Tags
from car_engine.batching.reuse.expected import Expected
from car_engine.grammar.constraint import ConstraintError
from car_engine.images.ahead import EncodeAhead
from car_engine.images.image_file import Size
from car_engine.output.format import Format
from car_engine.prompt.constraints import OutputConstraints
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.conversation import Conversations
from car_engine.prompt.decisions import DecisionPreparer, DecisionWay
from car_engine.prompt.image_prompt import Counts, ImagePrompt
from car_engine.prompt.job_progress import Clock, JobProgress, thread_clock
from car_engine.prompt.jobs import Job, Jobs, QueuedJob, Steps
from car_engine.prompt.preparer import Preparer, TokenizerThread
from car_engine.prompt.template import ChatTemplate, Rendered
from car_engine.prompt.text_inputs import TextInputs
from car_engine.prompt.vocabulary import FillTokens
from car_protocol.conversation import Function, ImagePart, Message, NamedTool, TextPart, Tool, ToolChoice
from car_protocol.decide import DecisionPrompt
from car_protocol.infer import PromptParams
from car_protocol.sampling import Dry, Sampling
from tests.engine.images.pictures import png
from tests.engine.prompt.chats import chat, user
from tests.engine.prompt.fakes import FakeVocabulary

OWNER = 1000
CONTEXT = 32


class FakeTokenizer(FakeVocabulary):
    """One token a byte; with `adds_begin` token 0 goes first."""

    longest_piece = 2

    def __init__(self, *, adds_begin: bool = True, begin: int = 0, fill: FillTokens | None = None) -> None:
        super().__init__([], adds_begin=adds_begin)
        self.begin = begin
        self.fill = fill
        self.parsed: list[bool] = []

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Cut text into bytes."""
        self.parsed.append(parse_special)
        return [*([self.begin] if add_special and self.adds_begin else []), *text.encode()]

    def detokenize(self, tokens: list[int], *, special: bool) -> str:
        """Write bytes out."""
        return bytes(tokens).decode() + ("!" if special else "")


class FakeTemplate:
    """One token a message; a single `nothing` has none, and `no` is refused."""

    def __init__(self, *, takes_tools: bool = True, form: Format | None = None, inside: bool = False) -> None:
        self.takes_tools = takes_tools
        self.format = form or Format()
        self.abilities = ["thinking"] if self.format.thinking else []
        self._inside = inside

    def render(self, chat: Chat, limit: ContextLimit, max_tokens: int | None) -> Rendered:
        """Render a conversation, in full with the reasoning in it."""
        text = chat.messages[0].text
        limit.check_bytes(sum(len(message.text + (message.reasoning or "")) for message in chat.messages), max_tokens)
        if text == "no":
            raise Refusal("invalid_params", param="messages")
        return Rendered([] if text == "nothing" else [7] * len(chat.messages), self._inside)

    def render_images(self, prompt: ImagePrompt, limit: ContextLimit, max_tokens: int | None) -> Rendered:
        """Render a conversation with images: they alone."""
        tokens = [token for placeholder in prompt.placeholders for token in placeholder]
        return Rendered(tokens, self._inside, [0])


class FakeGrammars:
    """Compiles all grammars but those that hold `bad`."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.owners: list[int] = []

    def compile(self, owner: int, text: str) -> None:
        """Take a grammar."""
        if "bad" in text:
            raise ConstraintError
        self.compiled.append(text)
        self.owners.append(owner)


def prepare(
    prompt: str | None = None,
    *,
    chat: Chat | None = None,
    **members: Any,
) -> Prepare:
    return Prepare(1, OWNER, PromptParams(prompt=prompt, **({} if chat is None else members_of(chat)), **members))


def members_of(chat: Chat) -> dict[str, Any]:
    """Return a conversation as members of params."""
    members = asdict(chat)
    members["parallel_tool_calls"] = members.pop("parallel")
    return members


def conversation(*texts: str, **more: Any) -> Chat:
    return Chat(messages=[Message("user", text) for text in texts], **more)


DEFAULT = FakeTemplate()
TEXTS = TextInputs(
    lambda text: [*text.encode()],
    lambda query, text: [*query.encode(), *text.encode()],
    ContextLimit(8, longest_piece=2),
    ranks=False,
)


def preparer(
    tokenizer: FakeTokenizer | None = None,
    template: FakeTemplate | None = DEFAULT,
    grammars: FakeGrammars | None = None,
    *,
    context_tokens: int = CONTEXT,
    warm: Callable[[int, Sampling], None] = lambda _, __: None,
    count_image: Callable[[Size], int] | None = None,
    no_images: str | None = None,
) -> Preparer:
    limit = ContextLimit(context_tokens, FakeTokenizer.longest_piece)
    conversations = Conversations(cast(ChatTemplate | None, template), limit, Counts(count_image), no_images)
    return Preparer(
        tokenizer or FakeTokenizer(),
        conversations,
        OutputConstraints((grammars or FakeGrammars()).compile, lambda _: None),
        TEXTS,
        DecisionPreparer(DecisionWay(None, why="it is a test"), [], conversations),
        warm,
        ["a"],
        generates=True,
    )


def tokens_of(answer: FromEngine | Steps) -> list[int]:
    assert isinstance(answer, Prepared)
    return array("i", answer.tokens).tolist()


def refused(answer: FromEngine | Steps) -> tuple[str, dict[str, object]]:
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
    why = "the chat template makes no prompt of them"
    assert refused(answer) == ("invalid_params", {"param": "messages", "why": why})


@pytest.mark.parametrize(("adds_begin", "begin"), [(True, [0]), (False, [])])
def test_a_gap_is_filled_behind_its_prefix_and_its_suffix(adds_begin: bool, begin: list[int]) -> None:
    tokenizer = FakeTokenizer(adds_begin=adds_begin, fill=FillTokens(201, 202, 203))
    for prefix, suffix in (("a", "b"), ("", "b"), ("a", ""), ("", "")):
        answer = preparer(tokenizer).answer(prepare(prefix, suffix=suffix))
        assert tokens_of(answer) == [*begin, 201, *prefix.encode(), 202, *suffix.encode(), 203]


def test_a_model_without_tokens_for_it_fills_no_gap() -> None:
    assert refused(preparer().answer(prepare("a", suffix="b"))) == ("model_unavailable", {"lacks": "fill"})


def test_a_suffix_counts_for_the_context() -> None:
    tokenizer = FakeTokenizer(fill=FillTokens(201, 202, 203))
    for suffix in ("x" * CONTEXT, "x" * (2 * CONTEXT + 1)):
        assert refused(preparer(tokenizer).answer(prepare("", suffix=suffix)))[0] == "context_exceeded"


def test_a_prompt_without_any_token_is_refused() -> None:
    answer = preparer(FakeTokenizer(adds_begin=False, begin=-1)).answer(prepare(""))
    reason, data = refused(answer)
    assert (reason, data["param"]) == ("invalid_params", "prompt")


@pytest.mark.parametrize("adds_begin", [True, False])
def test_an_empty_prompt_is_the_begin_token(adds_begin: bool) -> None:
    assert tokens_of(preparer(FakeTokenizer(adds_begin=adds_begin, begin=5)).answer(prepare(""))) == [5]


@pytest.mark.parametrize("token", [256, 2**31 - 1])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    why = f"the model has no token {token}: its vocabulary ends with 255"
    assert refused(preparer().answer(prepare(tokens=[1, token]))) == ("invalid_params", {"param": "tokens", "why": why})


@pytest.mark.parametrize(
    ("prompt", "asked", "given"), [(3, 8, 8), (3, 29, 29), (3, 30, 29), (3, 64_000, 29), (3, None, 29), (31, None, 1)]
)
def test_max_tokens_is_at_most_what_was_asked_and_what_fits(prompt: int, asked: int | None, given: int) -> None:
    answer = preparer().answer(prepare(tokens=[1] * prompt, max_tokens=asked))
    assert isinstance(answer, Prepared)
    assert answer.max_tokens == given
    assert answer.open_ended == (asked != given)


@pytest.mark.parametrize(("prompt", "asked"), [(32, None), (33, None), (32, 1)])
def test_a_prompt_that_leaves_no_room_for_a_token_is_refused_with_all_figures(prompt: int, asked: int | None) -> None:
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


def with_image() -> Prepare:
    image = ImagePart(base64.b64encode(png(4, 4)).decode())
    return prepare(chat=Chat(messages=[Message("user", [TextPart("see"), image])]))


def test_an_image_takes_the_positions_that_are_counted_for_its_size() -> None:
    answer = preparer(count_image=lambda size: size.width + 1).answer(with_image())
    assert isinstance(answer, Prepared)
    assert [(image.start, image.count) for image in answer.images] == [(0, 5)]


@pytest.mark.parametrize("why", [{}, {"why": "decoding images needs Pillow"}])
def test_images_are_refused_with_the_reason_where_there_is_one(why: dict[str, str]) -> None:
    answer = preparer(no_images=why.get("why")).answer(with_image())
    assert refused(answer) == ("model_unavailable", {"lacks": "images", **why})


def test_text_is_tokenized_and_written_out() -> None:
    assert preparer().answer(Tokenize(5, "ab", True, False)) == TokenIds(5, packed_tokens([0, 97, 98]))


def test_a_conversation_has_the_tokens_of_its_prompt_and_a_count_has_none() -> None:
    job = Tokenize(5, None, False, False, conversation("a", "b"))
    assert preparer().answer(job) == TokenIds(5, packed_tokens([7, 7]))
    assert preparer().answer(replace(job, count_only=True)) == TokensCounted(5, 2)


def test_a_conversation_longer_than_the_context_is_counted() -> None:
    assert preparer().answer(Tokenize(5, None, False, False, conversation(*["a"] * 40), True)) == TokensCounted(5, 40)


def test_the_tokens_of_what_no_template_renders_are_refused() -> None:
    answer = preparer().answer(Tokenize(5, None, False, False, conversation("no")))
    assert refused(answer) == ("invalid_params", {"param": "messages"})
    assert preparer().answer(Detokenize(6, [97], special=False)) == PlainText(6, "a")
    assert preparer().answer(Detokenize(6, [97], special=True)) == PlainText(6, "a!")


def test_writing_out_a_token_outside_the_vocabulary_is_refused() -> None:
    why = "the model has no token 256: its vocabulary ends with 255"
    answer = preparer().answer(Detokenize(6, [256], special=False))
    assert refused(answer) == ("invalid_params", {"param": "tokens", "why": why})


def no_command(command: object) -> None:
    raise AssertionError(command)


def tokenize(key: int, text: str) -> QueuedJob:
    return QueuedJob(Tokenize(key, text, False, False), 9, (0,))


def answers_to(jobs: Jobs) -> list[FromEngine]:
    """Do the jobs that are queued; return their answers."""
    answers: list[FromEngine] = []
    thread = TokenizerThread(
        preparer().answer, jobs, JobProgress(lambda _: None), answers.append, no_command, Expected()
    )
    while not jobs.empty or not thread.turns.empty:
        thread.turn()
    return answers


def test_jobs_are_answered_in_order() -> None:
    jobs = Jobs()
    jobs.put(tokenize(1, "a"))
    jobs.put(QueuedJob(Detokenize(2, [98], special=False), 9, (0,)))
    assert answers_to(jobs) == [TokenIds(1, packed_tokens([97])), PlainText(2, "b")]


def test_a_forgotten_job_is_not_done() -> None:
    jobs = Jobs()
    jobs.put(tokenize(1, "a"))
    jobs.put(tokenize(2, "b"))
    jobs.forget(1)
    assert answers_to(jobs) == [TokenIds(2, packed_tokens([98]))]


@pytest.mark.parametrize("owner", [0, 1])
def test_a_long_decision_gives_way_between_its_questions_also_to_its_own_user(owner: int) -> None:
    jobs, clock = Jobs(), [0.0]
    told: list[tuple[int, float]] = []
    decision = PrepareDecision(1, 0, DecisionPrompt(state="s", questions=[]), None, {})

    def steps() -> Steps:
        for question in range(100):
            if question == 5:
                jobs.put(QueuedJob(Tokenize(2, "a", False, False), 9, (owner,)))
            clock[0] += 0.03
            yield
        return Refused(1, "invalid_params", {})

    def answer(job: Job) -> FromEngine | Steps:
        return steps() if job is decision else TokenIds(2, b"")

    def send(message: FromEngine) -> None:
        assert isinstance(message, Refused | TokenIds)
        told.append((message.key, clock[0]))

    thread = TokenizerThread(answer, jobs, JobProgress(lambda _: None), send, no_command, Expected(), lambda: clock[0])
    jobs.put(QueuedJob(decision, 9, (0,)))
    while len(told) < 2:
        thread.turn()
    (first, at), (last, _) = told
    assert (first, last) == (2, 1)
    assert at - 5 * 0.03 < 0.120 + 2 * 0.03


def test_a_decision_that_is_forgotten_between_its_questions_is_not_done() -> None:
    jobs, begun = Jobs(), list[int]()
    decision = PrepareDecision(1, 0, DecisionPrompt(state="s", questions=[]), None, {})

    def steps() -> Steps:
        for question in range(100):
            begun.append(question)
            jobs.forget(1)
            yield
        return Refused(1, "invalid_params", {})

    times = count()
    thread = TokenizerThread(
        lambda _: steps(), jobs, JobProgress(lambda _: None), no_command, no_command, Expected(), lambda: next(times)
    )
    jobs.put(QueuedJob(decision, 9, (0,)))
    for _ in range(2):
        thread.turn()
    assert thread.turns.empty
    assert begun == [0]


@pytest.mark.parametrize("was_done", [False, True])
def test_a_request_that_was_forgotten_and_comes_again_is_answered(was_done: bool) -> None:
    jobs = Jobs()
    jobs.put(tokenize(1, "a"))
    if was_done:
        answers_to(jobs)
    jobs.forget(1)
    jobs.put(tokenize(1, "b"))
    assert answers_to(jobs) == [TokenIds(1, packed_tokens([98]))]


@pytest.mark.parametrize("forgotten_meanwhile", [False, True])
def test_a_prompt_with_images_goes_to_the_loop_which_answers_once_they_are_encoded(forgotten_meanwhile: bool) -> None:
    jobs = Jobs()
    commands: list[EncodeAhead | Forget] = []
    job = prepare("a picture")
    prepared = Prepared(job.key, b"", 1, images=[ImageSlot(0, 1, b"file")])

    def answer(_: Job) -> FromEngine:
        if forgotten_meanwhile:
            jobs.forget(job.key)
        return prepared

    def no_answer(message: FromEngine) -> None:
        raise AssertionError(message)

    thread = TokenizerThread(answer, jobs, JobProgress(lambda _: None), no_answer, commands.append, Expected())
    jobs.put(QueuedJob(job, 9, (job.owner,)))
    thread.turn()
    dropped = [Forget(job.key)] if forgotten_meanwhile else []
    assert commands == [EncodeAhead(job, prepared), *dropped]


@pytest.mark.parametrize(("passed", "worked", "age_ms"), [(2.5, 2.5, 2500.0), (6.0, 1.5, 1500.0), (24.0, 1.5, 4000.0)])
def test_the_age_of_a_job_is_reported_with_its_size_and_its_request(
    passed: float, worked: float, age_ms: float
) -> None:
    times, work = iter([1.0, 1.0 + passed]), iter([9.0, 9.0 + worked])
    begun: list[JobBegun] = []
    progress = JobProgress(begun.append, lambda: next(times), lambda: lambda: next(work))
    reports: list[RunningJob | None] = []

    def answer(job: Job) -> FromEngine:
        reports.append(progress.running(0.0))
        return TokenIds(job.key, packed_tokens([]))

    jobs = Jobs()
    jobs.put(QueuedJob(Tokenize(7, "a", False, False), 12, (0,)))
    TokenizerThread(answer, jobs, progress, lambda _: None, no_command, Expected()).turn()
    assert (reports, progress.running(0.0)) == ([RunningJob(age_ms, 12, 7)], None)
    assert begun == [JobBegun(RunningJob(0.0, 12, 7))]


def test_a_job_is_no_older_for_the_time_for_which_its_machine_was_stopped() -> None:
    times = iter([1.0, 101.0])
    progress = JobProgress(lambda _: None, lambda: next(times), lambda: lambda: 0.0)
    with progress.doing(12, 7):
        assert progress.running(95.0) == RunningJob(1000.0, 12, 7)


def work_for(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no clock of another thread's work")
def test_the_clock_of_a_thread_counts_its_own_work_alone() -> None:
    clocks: SimpleQueue[Clock] = SimpleQueue()
    worked, ends = threading.Event(), threading.Event()

    def work() -> None:
        clocks.put(thread_clock())
        work_for(0.05)
        worked.set()
        ends.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        clock = clocks.get()
        worked.wait()
        before = clock()
        work_for(0.05)
        assert 0.05 <= before <= clock() < before + 0.02
    finally:
        ends.set()
        thread.join()


def test_a_job_whose_thread_has_ended_does_not_run() -> None:
    def ended() -> float:
        raise OSError

    progress = JobProgress(lambda _: None, clock_of_thread=lambda: chain_clock([0.0], ended))
    with progress.doing(1, 7):
        assert progress.running(0.0) is None


def chain_clock(times: list[float], then: Clock) -> Clock:
    """Return a clock that shows these times, then goes on as another."""
    return lambda: times.pop() if times else then()


def test_a_model_whose_template_does_not_compile_refuses_chats_with_the_reason() -> None:
    conversations = Conversations(None, ContextLimit(CONTEXT, 2), no_template="line 1: no")
    with pytest.raises(Refusal) as error:
        conversations.prompt(chat(*user("hi")), None)
    assert error.value.data == {"lacks": "chat_template", "why": "line 1: no"}


def test_a_defect_refuses_one_job_and_is_reported_by_its_place_alone() -> None:
    def fail(_owner: int, _: Sampling) -> None:
        raise KeyError("what was asked")

    answer = preparer(warm=fail).answer(prepare("ab"))
    assert refused(answer) == ("internal_error", {})
    assert isinstance(answer, Refused)
    assert re.fullmatch(rf"KeyError at {__name__}:\d+", answer.fault or "")


THINKING = Format(Tags("<think>", "</think>"), "hermes")
TOOLS = [Tool("function", Function("f")), Tool("function", Function("g"))]


def reading_of(answer: FromEngine | Steps) -> Reading:
    assert isinstance(answer, Prepared)
    return unpacked_reading(answer.reading)


def constraint_of(answer: FromEngine | Steps) -> str:
    assert isinstance(answer, Prepared)
    return answer.constraint


def test_a_thinking_model_s_answer_is_split_unless_all_is_to_be_kept() -> None:
    thinking = preparer(template=FakeTemplate(form=THINKING, inside=True))
    split = reading_of(thinking.answer(prepare(chat=conversation("hi"))))
    assert (split.thinking, split.inside, split.tools) == (THINKING.thinking, True, None)
    kept = reading_of(thinking.answer(prepare(chat=conversation("hi", reasoning="keep"))))
    assert (kept.keep, split.keep, kept.inside, kept.markers) == (True, False, True, THINKING.markers)


def test_thoughts_are_refused_where_a_model_has_none() -> None:
    asked = prepare(chat=conversation("hi", reasoning="on"))
    assert isinstance(preparer(template=FakeTemplate(form=THINKING)).answer(asked), Prepared)
    reason, data = refused(preparer(template=FakeTemplate()).answer(asked))
    assert (reason, data["lacks"]) == ("model_unavailable", "thinking")
    assert "set `thinking_tags`" in str(data["why"])


def test_calls_are_read_only_where_there_are_tools() -> None:
    model = preparer(template=FakeTemplate(form=THINKING))
    assert reading_of(model.answer(prepare(chat=conversation("hi", tools=TOOLS)))).tools == "hermes"
    assert reading_of(model.answer(prepare(chat=conversation("hi")))).tools is None


def test_a_call_without_tags_counts_only_where_the_model_may_call_a_tool() -> None:
    model = preparer(template=FakeTemplate(form=THINKING))
    free = prepare(chat=conversation("hi", tools=TOOLS))
    chosen = prepare(chat=conversation("hi", tools=TOOLS), json_schema={"type": "object"})
    for each in (free, chosen):
        assert sorted(reading_of(model.answer(each)).schemas) == ["f", "g"]
    answered = prepare(chat=conversation("hi", tools=TOOLS, tool_choice="none"), json_schema={"type": "object"})
    written = prepare(chat=conversation("hi", tools=TOOLS), grammar='root ::= "{}"')
    for each in (answered, written):
        assert reading_of(model.answer(each)).schemas == {}
    assert reading_of(model.answer(prepare(chat=conversation("hi")))).schemas == {}


def test_an_answer_has_one_call_only_where_its_request_says_so() -> None:
    model = preparer(template=FakeTemplate(form=THINKING))
    for parallel in (True, False):
        prepared = model.answer(prepare(chat=conversation("hi", tools=TOOLS, parallel=parallel)))
        assert reading_of(prepared).one_call is not parallel
        forced = model.answer(prepare(chat=conversation("hi", tools=TOOLS, tool_choice="required", parallel=parallel)))
        assert isinstance(forced, Prepared)
        assert (")*" in forced.constraint.partition("\n")[0]) is parallel
    assert not reading_of(model.answer(prepare(chat=conversation("hi", parallel=False)))).one_call


def test_tools_are_refused_where_the_template_does_not_show_them() -> None:
    answer = preparer(template=FakeTemplate(takes_tools=False)).answer(prepare(chat=conversation("hi", tools=TOOLS)))
    why = "the chat template does not take tools"
    assert refused(answer) == ("model_unavailable", {"lacks": "tools", "why": why})


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools_are_refused_where_their_calls_cannot_be_read(choice: ToolChoice) -> None:
    chat = conversation("hi", tools=TOOLS, tool_choice=choice)
    why = "the syntax of its tool calls is not known: set `tool_style` in the model's entry"
    assert refused(preparer().answer(prepare(chat=chat))) == ("model_unavailable", {"lacks": "tools", "why": why})


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
    assert isinstance(preparer().answer(prepare("ab", logit_bias={"255": 1.0})), Prepared)
    answer = preparer().answer(prepare("ab", logit_bias={"256": 1.0}))
    why = "the model has no token 256: its vocabulary ends with 255"
    assert refused(answer) == ("invalid_params", {"param": "logit_bias", "why": why})


def test_expensive_objects_are_built_before_the_request_may_wait() -> None:
    warmed: list[Sampling] = []
    preparer(warm=lambda _, each: warmed.append(each)).answer(prepare("ab", dry=Dry(1.0)))
    assert [each.dry for each in warmed] == [Dry(1.0)]


def test_grammars_and_samplers_are_built_for_the_owner_whom_the_prepared_request_names() -> None:
    owners: list[int] = []
    grammars = FakeGrammars()
    prepared = preparer(grammars=grammars, warm=lambda owner, _: owners.append(owner)).answer(
        prepare("ab", grammar='root ::= "a"')
    )
    assert isinstance(prepared, Prepared)
    assert (prepared.owner, owners, grammars.owners) == (OWNER, [OWNER], [OWNER])


def test_a_conversation_that_is_rendered_too_long_is_refused_before_it_is_cut() -> None:
    chat = Chat(messages=[Message("assistant", "hi", reasoning="x" * 10_000)])
    reason, data = refused(preparer().answer(prepare(chat=chat)))
    assert (reason, data["prompt_tokens"]) == ("context_exceeded", None)
