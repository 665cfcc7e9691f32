"""The client of the daemon, asyncio and blocking, on one core without I/O; and `carctl`."""

from typing import TYPE_CHECKING

from car_client.client import Client
from car_client.errors import (
    BadSocketPath,
    CardError,
    ConnectionLost,
    ConnectTimeout,
    ContextExceeded,
    DaemonUnavailable,
    DeadlineExceeded,
    Draining,
    EngineLost,
    InvalidParams,
    LimitReached,
    ModelUnavailable,
    NotPermitted,
    Overloaded,
    ProtocolError,
    QuotaReached,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    SlowReader,
)
from car_client.options import Conversation, DecideOptions, InferOptions, TokenizeOptions, Turn
from car_client.results import (
    Answer,
    Capacity,
    Chunk,
    ConnectionStatus,
    Decision,
    Defaults,
    Model,
    ModelDetails,
    ModelStatus,
    OneAnswer,
    SequenceStatus,
    Status,
    ToolCallDelta,
)
from car_client.stream import Stream
from car_client.watch import StatusWatch
from car_protocol.answer import (
    FinishReason,
    Logprob,
    Timings,
    TokenChoice,
    Usage,
)
from car_protocol.capacity import Machine, Offer
from car_protocol.conversation import (
    AudioPart,
    Function,
    FunctionCall,
    ImagePart,
    Message,
    NamedTool,
    TextPart,
    Tool,
    ToolCall,
)
from car_protocol.decide import (
    Choice,
    ChoiceAnswer,
    DecisionTimings,
    DecisionUsage,
    Level,
    Option,
    Predicate,
    PredicateAnswer,
    Score,
    ScoreAnswer,
)
from car_protocol.infer import Lora
from car_protocol.limits import Limits
from car_protocol.models import (
    ArraySize,
    DeviceStatus,
    Estimate,
    LoadProgress,
    ModelFile,
)
from car_protocol.sampling import Dry, Mirostat, Xtc
from car_protocol.status import (
    Drained,
    EngineMemory,
    EngineStatus,
    Memory,
    MoreConnections,
    OtherUsers,
    Queue,
    Totals,
)
from car_protocol.text import Embeddings, Ranked, Ranking

if TYPE_CHECKING:
    from car_client.async_client import AsyncClient
    from car_client.async_stream import AsyncStream
    from car_client.async_watch import AsyncStatusWatch
else:
    _ASYNC = {"AsyncClient": "async_client", "AsyncStream": "async_stream", "AsyncStatusWatch": "async_watch"}

    def __getattr__(name):
        """Import the asyncio half at its first use, because asyncio costs more than all the rest."""
        if name not in _ASYNC:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"car_client.{_ASYNC[name]}"), name)


__all__ = [
    "Answer",
    "ArraySize",
    "AsyncClient",
    "AsyncStatusWatch",
    "AsyncStream",
    "AudioPart",
    "BadSocketPath",
    "Capacity",
    "CardError",
    "Choice",
    "ChoiceAnswer",
    "Chunk",
    "Client",
    "ConnectTimeout",
    "ConnectionLost",
    "ConnectionStatus",
    "ContextExceeded",
    "Conversation",
    "DaemonUnavailable",
    "DeadlineExceeded",
    "DecideOptions",
    "Decision",
    "DecisionTimings",
    "DecisionUsage",
    "Defaults",
    "DeviceStatus",
    "Drained",
    "Draining",
    "Dry",
    "Embeddings",
    "EngineLost",
    "EngineMemory",
    "EngineStatus",
    "Estimate",
    "FinishReason",
    "Function",
    "FunctionCall",
    "ImagePart",
    "InferOptions",
    "InvalidParams",
    "Level",
    "LimitReached",
    "Limits",
    "LoadProgress",
    "Logprob",
    "Lora",
    "Machine",
    "Memory",
    "Message",
    "Mirostat",
    "Model",
    "ModelDetails",
    "ModelFile",
    "ModelStatus",
    "ModelUnavailable",
    "MoreConnections",
    "NamedTool",
    "NotPermitted",
    "Offer",
    "OneAnswer",
    "Option",
    "OtherUsers",
    "Overloaded",
    "Predicate",
    "PredicateAnswer",
    "ProtocolError",
    "Queue",
    "QuotaReached",
    "Ranked",
    "Ranking",
    "RequestCancelled",
    "RequestError",
    "RequestTimeout",
    "Score",
    "ScoreAnswer",
    "SequenceStatus",
    "SlowReader",
    "Status",
    "StatusWatch",
    "Stream",
    "TextPart",
    "Timings",
    "TokenChoice",
    "TokenizeOptions",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Totals",
    "Turn",
    "Usage",
    "Xtc",
]
