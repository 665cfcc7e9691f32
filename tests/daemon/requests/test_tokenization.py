"""Tokenize and detokenize calls: answered once, by the engine, by a cancellation or by an end."""

from itertools import count
from typing import Any

import pytest
from msgspec import Struct

from car_base.ipc.codec import packed_tokens
from car_base.ipc.frames import Extra, PlainText, TokenIds, Tokenize
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin
from car_daemon.requests.tokenization import Tokenization
from car_protocol.answer import Progress
from car_protocol.errors import RpcError
from car_protocol.text import DetokenizeParams, TokenizeParams
from tests.daemon.links import Link

ORIGIN = CallOrigin(Identity(0), 1, 1, "a", None, None)


class Answers:
    """Collects the answers of one call."""

    def __init__(self) -> None:
        self.all: list[Struct | str] = []
        self.data: dict[str, Any] = {}

    @property
    def chunks(self) -> int:
        raise AssertionError("tokenization does not stream")

    def chunk(self, text: str, extra: Extra | None, index: int | None = None) -> None:
        raise AssertionError("tokenization does not stream")

    def progress(self, params: Progress) -> None:
        raise AssertionError("tokenization has no progress")

    def result(self, result: Struct) -> None:
        self.all.append(result)

    def error(self, error: RpcError) -> None:
        self.all.append(error.reason)
        self.data = error.data


def test_a_call_for_a_loading_model_is_sent_when_it_is_ready() -> None:
    tokenization, answers, link = Tokenization(count(1)), Answers(), Link()
    tokenization.tokenize("m", TokenizeParams(text="Hi"), ORIGIN, answers)
    tokenization.engine_ready("m", 1, link)
    assert link.sent == [Tokenize(1, "Hi", False, False, names=ORIGIN.names)]
    tokenization.answered(1, TokenIds(1, packed_tokens([7])))
    assert [str(answer) for answer in answers.all] == ["Tokens(tokens=[7], count=1)"]


def test_another_engine_does_not_answer_a_call() -> None:
    tokenization, answers = Tokenization(count(1)), Answers()
    tokenization.engine_ready("m", 1, Link())
    key = tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, answers)
    tokenization.answered(2, TokenIds(key, packed_tokens([7])))
    assert not tokenization.refused(2, key, RpcError("invalid_params"))
    assert (answers.all, len(tokenization.jobs)) == ([], 1)


def test_a_cancelled_call_is_answered_once_and_a_late_answer_is_dropped() -> None:
    tokenization, answers = Tokenization(count(1)), Answers()
    tokenization.engine_ready("m", 1, Link())
    key = tokenization.detokenize("m", DetokenizeParams(tokens=[1]), ORIGIN, answers)
    tokenization.cancel(key)
    tokenization.cancel(key)
    tokenization.answered(1, PlainText(key, "late"))
    assert not tokenization.refused(1, key, RpcError("invalid_params"))
    assert answers.all == ["cancelled"]


def test_a_drain_answers_every_open_call() -> None:
    tokenization, waiting, asked = Tokenization(count(1)), Answers(), Answers()
    tokenization.tokenize("loading", TokenizeParams(text="a"), ORIGIN, waiting)
    tokenization.engine_ready("m", 1, Link())
    tokenization.tokenize("m", TokenizeParams(text="b"), ORIGIN, asked)
    tokenization.refuse_all("draining")
    assert (waiting.all, asked.all) == (["draining"], ["draining"])


def test_a_drain_refuses_new_calls_and_finishes_the_others() -> None:
    left: list[str] = []
    draining = False
    tokenization, answers = Tokenization(count(1), draining=lambda: draining, left=left.append), Answers()
    tokenization.engine_ready("m", 1, Link())
    key = tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, answers)
    draining = True
    with pytest.raises(RpcError, match="going down"):
        tokenization.tokenize("m", TokenizeParams(text="b"), ORIGIN, answers)
    assert (len(tokenization.jobs), left) == (1, [])
    tokenization.answered(1, TokenIds(key, packed_tokens([7])))
    assert (len(tokenization.jobs), left, len(answers.all)) == (0, ["m"], 1)


def test_a_call_whose_engine_died_is_sent_once_more() -> None:
    tokenization, answers, second = Tokenization(count(1)), Answers(), Link()
    tokenization.engine_ready("m", 1, Link())
    key = tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, answers)
    tokenization.engine_lost(1)
    tokenization.engine_ready("m", 2, second)
    assert (answers.all, second.sent) == ([], [Tokenize(key, "a", False, False, names=ORIGIN.names)])
    tokenization.answered(2, TokenIds(key, packed_tokens([7])))
    assert [str(answer) for answer in answers.all] == ["Tokens(tokens=[7], count=1)"]


def test_a_call_that_was_with_two_engines_that_died_is_quarantined() -> None:
    tokenization, answers, third = Tokenization(count(1)), Answers(), Link()
    for engine in (1, 2):
        tokenization.engine_ready("m", engine, Link())
        if engine == 1:
            tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, answers)
        tokenization.engine_lost(engine)
    tokenization.engine_ready("m", 3, third)
    assert (answers.all, answers.data["quarantined"], third.sent) == (["engine_lost"], True, [])


def test_a_call_behind_the_one_at_which_two_engines_hung_is_served_by_a_third() -> None:
    tokenization, answers, third = Tokenization(count(1)), Answers(), Link()
    tokenization.engine_ready("m", 1, Link())
    bad = tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, answers)
    good = tokenization.tokenize("m", TokenizeParams(text="b"), ORIGIN, answers)
    tokenization.engine_lost(1, bad)
    tokenization.engine_ready("m", 2, Link())
    tokenization.engine_lost(2, bad)
    tokenization.engine_ready("m", 3, third)
    assert (answers.all, third.sent) == (["engine_lost"], [Tokenize(good, "b", False, False, names=ORIGIN.names)])


def test_a_cancelled_call_is_not_sent_again() -> None:
    tokenization, answers, second = Tokenization(count(1)), Answers(), Link()
    tokenization.engine_ready("m", 1, Link())
    tokenization.cancel(tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, answers))
    tokenization.engine_lost(1)
    tokenization.engine_ready("m", 2, second)
    assert (answers.all, second.sent) == (["cancelled"], [])


def test_a_failed_model_answers_what_waited_for_it() -> None:
    tokenization, answers = Tokenization(count(1)), Answers()
    tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, answers)
    tokenization.model_failed("m")
    assert answers.all == ["model_unavailable"]


def refusal(tokenization: Tokenization, size: int, owner: int = 0, tenant: str = "") -> str | None:
    """Submit a call of this many bytes; return why it was refused."""
    origin = CallOrigin(Identity(owner), 1, 1, "a", None, None, tenant)
    try:
        tokenization.tokenize("m", TokenizeParams(text="a"), origin, Answers(), size=size)
    except RpcError as error:
        return f"{error.reason} {error.data['limit']} {error.data['value']}"
    return None


def test_calls_that_wait_may_take_so_many_bytes_in_all() -> None:
    tokenization = Tokenization(count(1), max_bytes=lambda: 100)
    assert [refusal(tokenization, 60), refusal(tokenization, 40)] == [None, None]
    assert refusal(tokenization, 1) == "limit queue_max_bytes 100"
    tokenization.model_failed("m")
    assert refusal(tokenization, 1) is None


def test_calls_of_one_user_leave_another_user_one() -> None:
    tokenization = Tokenization(count(1), max_bytes=lambda: 100)
    assert [refusal(tokenization, 100, owner=1), refusal(tokenization, 1, owner=1)] == [
        None,
        "limit queue_max_bytes 100",
    ]
    assert [refusal(tokenization, 60, owner=2), refusal(tokenization, 1, owner=2)] == [
        None,
        "limit queue_max_bytes 100",
    ]


def test_calls_of_one_tenant_leave_another_tenant_of_the_process_one() -> None:
    tokenization = Tokenization(count(1), max_bytes=lambda: 100)
    assert refusal(tokenization, 100, tenant="a") is None
    assert refusal(tokenization, 1, tenant="a") == "limit queue_max_bytes 100"
    assert [refusal(tokenization, 60, tenant="b"), refusal(tokenization, 1, tenant="b")] == [
        None,
        "limit queue_max_bytes 100",
    ]


def test_one_call_may_be_larger_than_all_may_be() -> None:
    assert refusal(Tokenization(count(1), max_bytes=lambda: 100), 200) is None


def test_a_cancelled_call_counts_until_its_engine_is_done_with_it() -> None:
    tokenization, answers = Tokenization(count(1), max_bytes=lambda: 100), Answers()
    tokenization.engine_ready("m", 1, Link())
    key = tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, answers, size=100)
    tokenization.cancel(key)
    assert refusal(tokenization, 1) is not None
    assert tokenization.refused(1, key, RpcError("invalid_params"))
    assert answers.all == ["cancelled"]
    assert refusal(tokenization, 1) is None


def test_a_cancelled_call_that_no_engine_got_is_forgotten() -> None:
    tokenization, link = Tokenization(count(1), max_bytes=lambda: 100), Link()
    tokenization.cancel(tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, Answers(), size=100))
    assert refusal(tokenization, 100) is None
    tokenization.engine_ready("m", 1, link)
    assert len(link.sent) == 1


def test_a_closed_engine_answers_what_it_has_and_later_calls_wait_for_the_next_one() -> None:
    left: list[str] = []
    tokenization, answers, first, second = Tokenization(count(1), left=left.append), Answers(), Link(), Link()
    tokenization.engine_ready("m", 1, first)
    asked = tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, answers)
    tokenization.engines.close("m")
    tokenization.tokenize("m", TokenizeParams(text="b"), ORIGIN, answers)
    assert (len(first.sent), tokenization.jobs.engaged("m"), tokenization.jobs.busy("m")) == (1, True, True)
    tokenization.answered(1, TokenIds(asked, packed_tokens([1])))
    assert (left, tokenization.jobs.engaged("m"), tokenization.jobs.busy("m")) == (["m"], False, True)
    tokenization.engine_lost(1)
    tokenization.engine_ready("m", 2, second)
    assert len(second.sent) == 1
    assert (tokenization.jobs.engaged("m"), tokenization.jobs.busy("other")) == (True, False)


def test_a_failed_model_says_what_it_lacked() -> None:
    tokenization, answers = Tokenization(count(1)), Answers()
    tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, answers)
    tokenization.model_failed("m", {"needed_bytes": 2})
    assert answers.data["needed_bytes"] == 2


def test_a_call_that_no_frame_holds_is_forgotten() -> None:
    class Broken(Link):
        def send(self, message: Struct) -> None:
            raise OverflowError("no frame holds it")

    tokenization = Tokenization(count(1))
    tokenization.engine_ready("m", 1, Broken())
    with pytest.raises(OverflowError):
        tokenization.tokenize("m", TokenizeParams(text="a"), ORIGIN, Answers(), size=8)
    assert (repr(tokenization.jobs), tokenization.jobs.busy("m")) == ("<JobTable 0 open, 0 bytes>", False)
