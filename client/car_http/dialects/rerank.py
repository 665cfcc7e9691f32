"""`POST /v1/rerank`, as Jina, Cohere and llama-server have it."""

from typing import Any

from msgspec import Struct

from car_client.errors import ProtocolError
from car_http.dialects.common import Caller, given, origin_params
from car_http.problems import bad
from car_protocol.text import MAX_TEXTS, Ranking


class RerankRequest(Struct, kw_only=True):
    """The body; documents are texts, or objects with a text."""

    query: str
    documents: list[Any]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None


def read(request: RerankRequest, caller: Caller) -> dict[str, Any]:
    """Return the params of `rerank`; raises Problem."""
    if len(request.documents) > MAX_TEXTS:
        raise bad("documents", f"{len(request.documents)} documents, at most {MAX_TEXTS} a request: send the likeliest")
    documents = [_text(document, f"documents[{place}]") for place, document in enumerate(request.documents)]
    # More than there are is all of them.
    top_n = None if request.top_n is None else min(request.top_n, max(1, len(documents)))
    params = given(query=request.query, documents=documents, model=request.model or None, top_n=top_n)
    return params | origin_params(caller)


def ranking_object(request: RerankRequest, found: Ranking) -> dict[str, Any]:
    """Return the documents by their relevance; raises ProtocolError for one that the request does not have."""
    for ranked in found.results:
        if not 0 <= ranked.index < len(request.documents):
            documents = len(request.documents)
            raise ProtocolError(f"the daemon ranked document {ranked.index}, and the request has {documents}")
    results: list[dict[str, Any]] = [
        {"index": ranked.index, "relevance_score": ranked.score} for ranked in found.results
    ]
    if request.return_documents:
        for result in results:
            result["document"] = {"text": _text(request.documents[result["index"]], "documents")}
    tokens = found.usage.prompt_tokens
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": found.model, "results": results, "usage": usage}


def _text(document: Any, place: str) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise bad(place, "give a text, or an object with a `text`")
    return text
