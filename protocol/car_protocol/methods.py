"""The table of methods: what each takes and returns."""

from typing import Any

from msgspec import Struct

from car_protocol.admin import CancelOtherParams, Drained, DrainParams
from car_protocol.answer import Answer
from car_protocol.capacity import Capacity, CapacityParams
from car_protocol.embed import Embeddings, EmbedParams, Ranking, RerankParams
from car_protocol.infer import CancelParams, Empty, InferParams, NoParams
from car_protocol.meta import Params
from car_protocol.models import LoadParams, Model, Models
from car_protocol.status import Status, StatusParams
from car_protocol.text import DetokenizeParams, Text, TokenizeParams, Tokens


class Method(Struct, frozen=True):
    """One method of the contract; a streaming one may not stand in a batch, inference counts in the totals."""

    summary: str
    params: type[Params] | type[InferParams]
    result: Any
    streams: bool = False
    infers: bool = False


METHODS: dict[str, Method] = {
    "inference/capacity": Method("How many requests run at once, and why.", CapacityParams, Capacity),
    "infer": Method("Answer a prompt in one piece.", InferParams, Answer, infers=True),
    "infer_stream": Method("Answer a prompt piece by piece.", InferParams, Answer, streams=True, infers=True),
    "$/cancelRequest": Method("Cancel a request of this connection.", CancelParams, Empty),
    "embed": Method("Turn texts into vectors.", EmbedParams, Embeddings, infers=True),
    "rerank": Method("Order documents by how well they answer a query.", RerankParams, Ranking, infers=True),
    "tokenize": Method("Cut text into the model's tokens.", TokenizeParams, Tokens),
    "detokenize": Method("Write tokens out as text.", DetokenizeParams, Text),
    "models/list": Method("List what the daemon can serve.", NoParams, Models),
    "models/load": Method("Load a model.", LoadParams, Model),
    "models/unload": Method("Unload a model once it has finished its work.", LoadParams, Model),
    "daemon/status": Method("What the daemon is doing now.", StatusParams, Status),
    "daemon/cancel": Method("Cancel another connection's request.", CancelOtherParams, Empty),
    "daemon/drain": Method("Finish what runs and waits, then end.", DrainParams, Drained),
    "daemon/reload": Method("Read the configuration again.", NoParams, Empty),
    "daemon/metrics": Method("What is counted, as Prometheus text.", NoParams, Text),
    "rpc.discover": Method("This table as an OpenRPC document.", NoParams, dict[str, Any]),
}
CHUNK = "infer_stream/chunk"
PROGRESS = "infer_stream/progress"
MODELS_PROGRESS = "models/progress"
CAPACITY_CHANGED = "inference/capacity_changed"
STATUS_CHANGED = "daemon/status_changed"
