"""Texts to embed: turns of requests, and failures."""

from collections.abc import Callable

from car_base.ipc.codec import packed_tokens, vector_of
from car_base.ipc.frames import Prepared, RequestUpdate, RunTexts
from car_engine.runner.texts import CannotEmbed, Texts
from tests.engine.fakes import FakeEmbedder
from tests.pace import SetClock


def texts_of(open_embedder: Callable[[], FakeEmbedder] = FakeEmbedder) -> Texts:
    return Texts(lambda: open_embedder().in_batches, SetClock(tick=0.001))


def command(key: int, *texts: list[int]) -> RunTexts:
    tokens = packed_tokens(token for text in texts for token in text)
    return RunTexts(Prepared(key, tokens, 1, lengths=[len(text) for text in texts]), normalize=False)


def updates_of(texts: Texts) -> list[RequestUpdate]:
    updates = []
    while texts.busy:
        updates += texts.step(writes=False)
    return updates


def ends(texts: Texts) -> list[RequestUpdate]:
    return [update for update in updates_of(texts) if update.end is not None]


def vectors(update: RequestUpdate) -> list[list[float]] | None:
    return [vector_of(each) for each in update.extra.vectors] if update.extra else None


def fault(update: RequestUpdate) -> str | None:
    assert update.end is not None
    return update.end.fault


def test_requests_take_turns_by_the_batch() -> None:
    texts = texts_of()
    assert texts.start(command(1, [1], [2], [3])) == texts.start(command(2, [4, 4])) == []
    first, second = ends(texts)
    assert (first.key, vectors(first)) == (2, [[2.0, 4.0]])
    assert (second.key, vectors(second)) == (1, [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])


def test_a_request_that_yields_has_no_turn_while_an_answer_is_written() -> None:
    texts = texts_of()
    texts.start(command(1, [1], [2], [3]))
    texts.start(command(2, [4], [5], [6]))
    texts.let_yield([1])
    turns = [[update.key for update in texts.step(writes=writes)] for writes in (True, True, True, False)]
    assert turns == [[2], [2], [], [1]]
    texts.let_yield([])
    assert [update.key for update in texts.step(writes=True)] == [1]


def test_each_batch_reports_the_tokens_that_were_computed_so_far() -> None:
    texts = texts_of()
    texts.start(command(1, [1], [2, 2], [3]))
    assert [update.prompt_done for update in updates_of(texts)] == [3, 4]


def test_a_request_that_is_halted_reports_the_tokens_that_were_computed() -> None:
    texts = texts_of()
    texts.start(command(1, [1, 1], [2], [3]))
    texts.step(writes=False)
    assert [update.prompt_done for update in texts.halt(1)] == [3]


def test_vectors_come_in_the_order_of_the_texts_whatever_the_order_of_the_batches() -> None:
    class ByLength(FakeEmbedder):
        def batches(self, inputs: list[list[int]]) -> list[list[int]]:
            return [[2, 0], [1]]

    texts = texts_of(ByLength)
    texts.start(command(1, [1], [2], [3]))
    (end,) = ends(texts)
    assert vectors(end) == [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]


def test_a_batch_that_fails_ends_its_request_alone() -> None:
    texts = texts_of()
    texts.start(command(1, [13]))
    texts.start(command(2, [4]))
    assert [(update.key, fault(update)) for update in ends(texts)] == [(1, "embedder"), (2, None)]


def test_an_embedder_that_does_not_open_fails_the_request_and_nothing_else() -> None:
    tries = iter((CannotEmbed(), FakeEmbedder()))

    def open_embedder() -> FakeEmbedder:
        tried = next(tries)
        if isinstance(tried, CannotEmbed):
            raise tried
        return tried

    texts = texts_of(open_embedder)
    (failed,) = texts.start(command(1, [1]))
    assert (failed.key, fault(failed), vectors(failed), texts.busy) == (1, "embedder", None, False)
    assert texts.start(command(2, [1])) == []
    assert [(update.key, fault(update)) for update in ends(texts)] == [(2, None)]
