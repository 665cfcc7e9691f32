"""`embed` and `rerank`: texts as vectors, and documents by how well they answer a query."""

from typing import Annotated

from msgspec import Meta, Struct

from car_protocol.answer import Usage
from car_protocol.meta import Params

MAX_TEXTS = 256


class EmbedParams(Params, frozen=True, kw_only=True):
    """The texts to embed; vectors have length 1 unless `normalize` is false."""

    input: Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)]
    model: str | None = None
    normalize: bool = True


class Embeddings(Struct, frozen=True):
    """A vector for every text, in their order."""

    embeddings: list[list[float]]
    model: str
    usage: Usage


class RerankParams(Params, frozen=True, kw_only=True):
    """A query, and the documents to order; `top_n` keeps the best."""

    query: str
    documents: Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1, le=MAX_TEXTS)] | None = None


class Ranked(Struct, frozen=True):
    """One document by its place in the request, and how well it fits: higher is better."""

    index: int
    score: float


class Ranking(Struct, frozen=True):
    """The documents, the best first."""

    results: list[Ranked]
    model: str
    usage: Usage
