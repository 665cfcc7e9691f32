"""`POST /v1/rerank`, as Jina, Cohere and llama-server have it, and as TEI does, whose documents are `texts`."""

import math
from typing import Annotated, Any

from msgspec import Struct

from car_client.errors import ProtocolError
from car_http.dialects.common import Caller, given, origin_params
from car_http.problems import bad
from car_protocol.meta import note
from car_protocol.text import MAX_TEXTS, Ranked, Ranking


class RerankRequest(Struct, kw_only=True):
    """The body; documents are texts, or objects with a text."""

    query: str
    documents: list[Any] | None = None
    texts: Annotated[list[str] | None, note("TEI's, in place of `documents`; the answer is a list")] = None
    model: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    return_text: Annotated[bool | None, note("TEI's")] = None
    raw_scores: Annotated[bool | None, note("TEI's; true: the model's own scores, else between 0 and 1")] = None


def read(request: RerankRequest, caller: Caller) -> dict[str, Any]:
    """Return the params of `rerank`; raises Problem."""
    name = "documents" if request.texts is None else "texts"
    if (request.documents is None) == (request.texts is None):
        raise bad(name, "give either `documents`, or `texts` as TEI's clients do")
    listed = _listed(request)
    if len(listed) > MAX_TEXTS:
        raise bad(name, f"{len(listed)} documents, at most {MAX_TEXTS} a request: send the likeliest")
    documents = [_text(document, f"{name}[{place}]") for place, document in enumerate(listed)]
    # More than there are is all of them.
    top_n = None if request.top_n is None else min(request.top_n, max(1, len(documents)))
    params = given(query=request.query, documents=documents, model=request.model or None, top_n=top_n)
    return params | origin_params(caller)


def ranking_object(request: RerankRequest, found: Ranking) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the documents by their relevance; raises ProtocolError for one that the request does not have."""
    listed = _listed(request)
    for ranked in found.results:
        if not 0 <= ranked.index < len(listed):
            documents = len(listed)
            raise ProtocolError(f"the daemon ranked document {ranked.index}, and the request has {documents}")
    if request.texts is not None:
        return [_scored(request, ranked) for ranked in found.results]
    results: list[dict[str, Any]] = [
        {"index": ranked.index, "relevance_score": ranked.score} for ranked in found.results
    ]
    if request.return_documents:
        for result in results:
            result["document"] = {"text": _text(listed[result["index"]], "documents")}
    tokens = found.usage.prompt_tokens
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": found.model, "results": results, "usage": usage}


def _listed(request: RerankRequest) -> list[Any]:
    return (request.documents if request.texts is None else request.texts) or []


def _scored(request: RerankRequest, ranked: Ranked) -> dict[str, Any]:
    """Return a document as TEI does; its score is a probability unless the request has `raw_scores`."""
    score = ranked.score if request.raw_scores else (1 + math.tanh(ranked.score / 2)) / 2
    shown: dict[str, Any] = {"index": ranked.index, "score": score}
    return shown | {"text": _listed(request)[ranked.index]} if request.return_text else shown


def _text(document: Any, place: str) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise bad(place, "give a text, or an object with a `text`")
    return text
