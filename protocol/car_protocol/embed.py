"""`embed` and `rerank`: texts as vectors, and documents by how well they answer a query."""

from typing import Annotated

from msgspec import Meta, Struct

from car_protocol.answer import Usage
from car_protocol.meta import Params
from car_protocol.notes import note
from car_protocol.tenant import Tenant, check_tenant

MAX_TEXTS = 256


class EmbedParams(Params, frozen=True, kw_only=True):
    """The texts to embed; vectors have length 1 unless `normalize` is false."""

    input: Annotated[
        list[str],
        Meta(min_length=1, max_length=MAX_TEXTS),
        note("each of at most 512 tokens where the model also generates, else 2,048, and at most its trained context"),
    ]
    model: str | None = None
    normalize: Annotated[bool, note("vectors have length 1")] = True
    truncate: Annotated[bool, note("of a longer text its beginning counts; without it such a text is refused")] = False
    tenant: Tenant = ""

    def __post_init__(self) -> None:
        check_tenant(self.tenant)


class Embeddings(Struct, frozen=True):
    """A vector for every text, in their order."""

    embeddings: Annotated[list[list[float]], note("a vector for every text, in their order")]
    model: str
    usage: Usage


class RerankParams(Params, frozen=True, kw_only=True):
    """A query, and the documents to order; `top_n` keeps the best."""

    query: str
    documents: Annotated[
        list[str], Meta(min_length=1, max_length=MAX_TEXTS), note("each with the query as long as a text of `embed`")
    ]
    model: str | None = None
    top_n: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TEXTS)] | None,
        note("the number of the best documents to return; all where absent"),
    ] = None
    tenant: Tenant = ""

    def __post_init__(self) -> None:
        check_tenant(self.tenant)


class Ranked(Struct, frozen=True):
    """One document by its place in the request, and how well it fits: higher is better."""

    index: Annotated[int, note("of the document in the request")]
    score: Annotated[float, note("the model's own; higher is better")]


class Ranking(Struct, frozen=True):
    """The documents, the best first."""

    results: Annotated[list[Ranked], note("the best first")]
    model: str
    usage: Usage
