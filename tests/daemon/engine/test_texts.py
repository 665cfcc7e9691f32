"""Texts to embed in an engine: whose turn it is, and what goes wrong."""

from array import array
from collections.abc import Callable

from car_daemon.engine.frames import Row, RunTexts
from car_daemon.engine.texts import CannotEmbed, Texts
from tests.daemon.engine.fakes import FakeClock, FakeEmbedder


def texts_of(open_embedder: Callable[[], FakeEmbedder] = FakeEmbedder) -> Texts:
    return Texts(open_embedder, FakeClock(0.001))


def command(key: int, *texts: list[int]) -> RunTexts:
    tokens = array("i", [token for text in texts for token in text]).tobytes()
    return RunTexts(key=key, tokens=tokens, lengths=[len(text) for text in texts], normalize=False)


def ends(texts: Texts) -> list[Row]:
    rows = []
    while texts.busy:
        rows += texts.step()
    return rows


def vectors(row: Row) -> list[list[float]] | None:
    return row.extra.vectors if row.extra else None


def fault(row: Row) -> str | None:
    assert row.end is not None
    return row.end.fault


def test_requests_take_turns_by_the_batch() -> None:
    texts = texts_of()
    assert texts.start(command(1, [1], [2], [3])) == texts.start(command(2, [4, 4])) == []
    first, second = ends(texts)
    assert (first.key, vectors(first)) == (2, [[2.0, 4.0]])
    assert (second.key, vectors(second)) == (1, [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])


def test_a_batch_that_fails_ends_its_request_alone() -> None:
    texts = texts_of()
    texts.start(command(1, [13]))
    texts.start(command(2, [4]))
    assert [(row.key, fault(row)) for row in ends(texts)] == [(1, "embedder"), (2, None)]


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
    assert [(row.key, fault(row)) for row in ends(texts)] == [(2, None)]
