"""Rerank in the form of TEI's clients: `texts` in, a list of `index` and `score` out."""

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.door.support import OfflineDoor

BODY = {"query": "cats", "texts": ["dogs", "cats"]}


async def test_teis_client_gets_a_list_of_scores_between_0_and_1(offline: OfflineDoor, fake: FakeDaemon) -> None:
    answer = await offline.post("/rerank", BODY)
    assert answer.status == 200, answer.body
    assert [each["index"] for each in answer.json] == [1, 0]
    assert [each["score"] for each in answer.json] == [
        pytest.approx(0.71095, abs=1e-4),
        pytest.approx(0.37754, abs=1e-4),
    ]
    assert fake.params("rerank")["documents"] == BODY["texts"]


async def test_teis_client_gets_texts_and_the_models_own_scores(offline: OfflineDoor) -> None:
    answer = await offline.post("/rerank", BODY | {"return_text": True, "raw_scores": True})
    assert answer.json == [{"index": 1, "score": 0.9, "text": "cats"}, {"index": 0, "score": -0.5, "text": "dogs"}]


@pytest.mark.parametrize(("more", "param"), [({"documents": ["a"]}, "texts"), ({"texts": None}, "documents")])
async def test_a_request_has_documents_or_texts(offline: OfflineDoor, more: dict[str, object], param: str) -> None:
    answer = await offline.post("/rerank", BODY | more)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
