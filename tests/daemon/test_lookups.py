"""Look-ups of text: answered once, by the engine, by a cancellation or by an end."""

from itertools import count
from typing import Any

import pytest
from msgspec import Struct

from car_daemon.engine.frames import Extra, PlainText, Refused, TokenIds, Tokenize
from car_daemon.lookups import Lookups
from car_protocol.answer import Progress
from car_protocol.errors import RpcError
from car_protocol.text import DetokenizeParams, TokenizeParams


class Answers:
    """Collects the answers of one question."""

    def __init__(self) -> None:
        self.all: list[Struct | str] = []
        self.data: dict[str, Any] = {}

    @property
    def chunks(self) -> int:
        raise AssertionError("a look-up does not stream")

    def chunk(self, text: str, extra: Extra | None) -> None:
        raise AssertionError("a look-up does not stream")

    def progress(self, params: Progress) -> None:
        raise AssertionError("a look-up has no progress")

    def result(self, result: Struct) -> None:
        self.all.append(result)

    def error(self, error: RpcError) -> None:
        self.all.append(error.reason)
        self.data = error.data


class Link:
    """An engine that remembers what it was asked."""

    pid = 1

    def __init__(self) -> None:
        self.asked: list[Struct] = []

    def send(self, message: Struct) -> None:
        self.asked.append(message)

    async def wait(self) -> int:
        raise AssertionError("nobody waits here")

    def kill(self) -> None:
        raise AssertionError("nobody kills here")

    async def stop(self) -> None:
        raise AssertionError("nobody stops here")


def test_a_question_for_a_loading_model_is_asked_when_it_is_ready() -> None:
    lookups, answers, link = Lookups(count(1)), Answers(), Link()
    lookups.tokenize("m", TokenizeParams(text="Hi"), answers)
    lookups.engine_ready("m", 1, link)
    assert link.asked == [Tokenize(1, "Hi", False, False)]
    lookups.answered(TokenIds(1, [7]))
    assert [str(answer) for answer in answers.all] == ["Tokens(tokens=[7])"]


def test_a_cancelled_question_is_answered_once_and_a_late_answer_is_dropped() -> None:
    lookups, answers = Lookups(count(1)), Answers()
    lookups.engine_ready("m", 1, Link())
    key = lookups.detokenize("m", DetokenizeParams(tokens=[1]), answers)
    lookups.cancel(key)
    lookups.cancel(key)
    lookups.answered(PlainText(key, "late"))
    assert not lookups.refused(Refused(key, "invalid_params", {}))
    assert answers.all == ["cancelled"]


def test_a_drain_answers_every_open_question() -> None:
    lookups, waiting, asked = Lookups(count(1)), Answers(), Answers()
    lookups.tokenize("loading", TokenizeParams(text="a"), waiting)
    lookups.engine_ready("m", 1, Link())
    lookups.tokenize("m", TokenizeParams(text="b"), asked)
    lookups.refuse_all("draining")
    assert (waiting.all, asked.all) == (["draining"], ["draining"])


def test_a_drain_refuses_new_questions_and_finishes_the_others() -> None:
    left: list[str] = []
    draining = False
    lookups, answers = Lookups(count(1), draining=lambda: draining, left=left.append), Answers()
    lookups.engine_ready("m", 1, Link())
    key = lookups.tokenize("m", TokenizeParams(text="a"), answers)
    draining = True
    with pytest.raises(RpcError, match="going down"):
        lookups.tokenize("m", TokenizeParams(text="b"), answers)
    assert (len(lookups), left) == (1, [])
    lookups.answered(TokenIds(key, [7]))
    assert (len(lookups), left, len(answers.all)) == (0, ["m"], 1)


def test_a_question_whose_engine_died_is_asked_once_more() -> None:
    lookups, answers, second = Lookups(count(1)), Answers(), Link()
    lookups.engine_ready("m", 1, Link())
    key = lookups.tokenize("m", TokenizeParams(text="a"), answers)
    lookups.engine_lost(1)
    lookups.engine_ready("m", 2, second)
    assert (answers.all, second.asked) == ([], [Tokenize(key, "a", False, False)])
    lookups.answered(TokenIds(key, [7]))
    assert [str(answer) for answer in answers.all] == ["Tokens(tokens=[7])"]


def test_a_question_that_was_with_two_engines_that_died_is_quarantined() -> None:
    lookups, answers, third = Lookups(count(1)), Answers(), Link()
    for engine in (1, 2):
        lookups.engine_ready("m", engine, Link())
        if engine == 1:
            lookups.tokenize("m", TokenizeParams(text="a"), answers)
        lookups.engine_lost(engine)
    lookups.engine_ready("m", 3, third)
    assert (answers.all, answers.data["quarantined"], third.asked) == (["engine_lost"], True, [])


def test_a_cancelled_question_is_not_asked_again() -> None:
    lookups, answers, second = Lookups(count(1)), Answers(), Link()
    lookups.engine_ready("m", 1, Link())
    lookups.cancel(lookups.tokenize("m", TokenizeParams(text="a"), answers))
    lookups.engine_lost(1)
    lookups.engine_ready("m", 2, second)
    assert (answers.all, second.asked) == (["cancelled"], [])


def test_a_failed_model_answers_what_waited_for_it() -> None:
    lookups, answers = Lookups(count(1)), Answers()
    lookups.tokenize("m", TokenizeParams(text="a"), answers)
    lookups.model_failed("m")
    assert answers.all == ["model_unavailable"]


def refusal(lookups: Lookups, size: int) -> str | None:
    """Ask a question of so many bytes; return why it was refused."""
    try:
        lookups.tokenize("m", TokenizeParams(text="a"), Answers(), size)
    except RpcError as error:
        return f"{error.reason} {error.data['limit']} {error.data['value']}"
    return None


def test_questions_that_wait_may_take_so_many_bytes_in_all() -> None:
    lookups = Lookups(count(1), max_bytes=lambda: 100)
    assert [refusal(lookups, 60), refusal(lookups, 40)] == [None, None]
    assert refusal(lookups, 1) == "limit queue_max_bytes 100"
    lookups.model_failed("m")
    assert refusal(lookups, 1) is None


def test_one_question_may_be_larger_than_all_may_be() -> None:
    assert refusal(Lookups(count(1), max_bytes=lambda: 100), 200) is None


def test_a_cancelled_question_counts_until_its_engine_is_done_with_it() -> None:
    lookups, answers = Lookups(count(1), max_bytes=lambda: 100), Answers()
    lookups.engine_ready("m", 1, Link())
    key = lookups.tokenize("m", TokenizeParams(text="a"), answers, 100)
    lookups.cancel(key)
    assert refusal(lookups, 1) is not None
    assert lookups.refused(Refused(key, "invalid_params", {}))
    assert answers.all == ["cancelled"]
    assert refusal(lookups, 1) is None


def test_a_cancelled_question_that_no_engine_was_asked_is_forgotten() -> None:
    lookups, link = Lookups(count(1), max_bytes=lambda: 100), Link()
    lookups.cancel(lookups.tokenize("m", TokenizeParams(text="a"), Answers(), 100))
    assert refusal(lookups, 100) is None
    lookups.engine_ready("m", 1, link)
    assert len(link.asked) == 1


def test_a_closed_engine_answers_what_it_was_asked_and_newcomers_wait_for_the_next_one() -> None:
    left: list[str] = []
    lookups, answers, first, second = Lookups(count(1), left=left.append), Answers(), Link(), Link()
    lookups.engine_ready("m", 1, first)
    asked = lookups.tokenize("m", TokenizeParams(text="a"), answers)
    lookups.close("m")
    lookups.tokenize("m", TokenizeParams(text="b"), answers)
    assert (len(first.asked), lookups.engaged("m"), lookups.busy("m")) == (1, True, True)
    lookups.answered(TokenIds(asked, [1]))
    assert (left, lookups.engaged("m"), lookups.busy("m")) == (["m"], False, True)
    lookups.engine_lost(1)
    lookups.engine_ready("m", 2, second)
    assert len(second.asked) == 1
    assert (lookups.engaged("m"), lookups.busy("other")) == (True, False)


def test_a_failed_model_says_what_it_lacked() -> None:
    lookups, answers = Lookups(count(1)), Answers()
    lookups.tokenize("m", TokenizeParams(text="a"), answers)
    lookups.model_failed("m", {"needed_bytes": 2})
    assert answers.data["needed_bytes"] == 2


def test_a_question_that_no_frame_holds_is_forgotten() -> None:
    class Broken(Link):
        def send(self, message: Struct) -> None:
            raise OverflowError("no frame holds it")

    lookups = Lookups(count(1))
    lookups.engine_ready("m", 1, Broken())
    with pytest.raises(OverflowError):
        lookups.tokenize("m", TokenizeParams(text="a"), Answers(), 8)
    assert (len(lookups), lookups.busy("m"), lookups._bytes) == (0, False, 0)
