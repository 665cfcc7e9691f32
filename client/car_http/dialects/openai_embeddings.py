"""`POST /v1/embeddings`."""

import base64
import struct
from typing import Any

from msgspec import Struct

from car_http.dialects.common import Caller, origin_params
from car_http.problems import Problem, bad
from car_protocol.text import Embeddings


class EmbeddingsRequest(Struct, kw_only=True):
    """The body; members that it does not name are dropped."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    user: str | None = None


class EmbedJob(Struct, frozen=True):
    """Params of `embed`, whether vectors are written as base64, and how many of their numbers."""

    params: dict[str, Any]
    base64: bool
    dimensions: int | None


def read(request: EmbeddingsRequest, caller: Caller) -> EmbedJob:
    """Translate a request; raises Problem."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    if any(not isinstance(text, str) for text in texts):
        raise bad("input", "send texts: token ids of another tokenizer mean nothing to this model")
    if request.encoding_format not in (None, "float", "base64"):
        raise bad("encoding_format", "give float or base64")
    if request.dimensions is not None and request.dimensions < 1:
        raise bad("dimensions", "give a number of at least 1")
    params: dict[str, Any] = {"input": texts}
    if request.model:
        params["model"] = request.model
    return EmbedJob(
        params | origin_params(caller, request.user), request.encoding_format == "base64", request.dimensions
    )


def embeddings_object(job: EmbedJob, found: Embeddings) -> dict[str, Any]:
    """Return the vectors; raises Problem if they have fewer numbers than requested."""
    data = [
        {"object": "embedding", "index": index, "embedding": _written(shortened(vector, job.dimensions), job)}
        for index, vector in enumerate(found.embeddings)
    ]
    tokens = found.usage.prompt_tokens
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": found.model, "usage": usage}


def shortened(vector: list[float], dimensions: int | None) -> list[float]:
    """Return the first numbers of a vector, scaled to length 1 again."""
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise Problem(400, "invalid_value", f"dimensions: the model has {len(vector)}", param="dimensions")
    kept = vector[:dimensions]
    length = sum(number * number for number in kept) ** 0.5
    return [number / length for number in kept] if length else kept


def _written(vector: list[float], job: EmbedJob) -> list[float] | str:
    if not job.base64:
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
