"""The pending answer to `embed` and `rerank`: vectors of numbers, one for each text, or an error."""

from typing import Any, cast

import pytest

from car_base.ipc.codec import packed_vector
from car_base.ipc.frames import End, Extra, RequestUpdate
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin, Responder
from car_daemon.requests.embedding import EmbeddingAnswer
from car_daemon.scheduler.request import Request, RequestSpec
from car_protocol.answer import Usage
from car_protocol.text import EmbedParams, RerankParams

ORIGIN = CallOrigin(Identity(0), 1, 1, "a", None, None)
EMBED = EmbedParams(input=["a", "b"])
RERANK = RerankParams(query="q", documents=["a", "b"])


class Client:
    """The client's side of a request."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def result(self, result: Any) -> None:
        self.results.append(result)


def complete(params: EmbedParams | RerankParams, *vectors: tuple[float, ...]) -> Any:
    """Return the result for an engine's vectors."""
    client = Client()
    request = Request(RequestSpec(key=7, model="m", arrived=0.0))
    answer = EmbeddingAnswer(request, params, ORIGIN, cast(Responder, client))
    extra = Extra(vectors=[packed_vector(each) for each in vectors])
    answer.add(RequestUpdate(7, 0, "", 0, 2, extra, End("stop", None, Usage(2, 0, 0), 0.0, 0.0)))
    answer.complete()
    (result,) = client.results
    return result


def test_each_text_has_its_vector_or_its_score() -> None:
    assert complete(EMBED, (0.5, 1.0), (0.25, 0.0)).embeddings == [[0.5, 1.0], [0.25, 0.0]]
    assert [(each.index, each.score) for each in complete(RERANK, (-1.0,), (2.0,)).results] == [(1, 2.0), (0, -1.0)]


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize("vectors", [[], [(0.5,)], [(0.5,)] * 3, [(0.5,), (NAN,)], [(INFINITE,), (-INFINITE,)]])
@pytest.mark.parametrize("params", [EMBED, RERANK], ids=["embed", "rerank"])
def test_vectors_that_are_no_answer_are_an_error_of_the_request(
    params: EmbedParams | RerankParams, vectors: list[tuple[float, ...]]
) -> None:
    with pytest.raises(ValueError, match="no numbers"):
        complete(params, *vectors)
