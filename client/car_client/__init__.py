"""The thin client of the daemon, asyncio and blocking, on one sans-I/O core; and `carctl`."""

from typing import TYPE_CHECKING

from car_client.client import Client
from car_client.errors import (
    BadSocketPath,
    CardError,
    ContextExceeded,
    ContractBroken,
    DaemonUnavailable,
    DeadlineExceeded,
    Draining,
    EngineLost,
    InvalidParams,
    LimitReached,
    ModelUnavailable,
    NotPermitted,
    Overloaded,
    RequestCancelled,
    RequestError,
    SlowReader,
)
from car_client.options import InferOptions
from car_client.stream import Stream
from car_protocol.answer import Answer, Chunk
from car_protocol.capacity import Capacity

if TYPE_CHECKING:
    from car_client.async_client import AsyncClient
    from car_client.async_stream import AsyncStream
else:

    def __getattr__(name):
        """Import the asyncio half when it is asked for: asyncio costs more than all the rest."""
        if name == "AsyncClient":
            from car_client.async_client import AsyncClient

            return AsyncClient
        if name == "AsyncStream":
            from car_client.async_stream import AsyncStream

            return AsyncStream
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "BadSocketPath",
    "Capacity",
    "CardError",
    "Chunk",
    "Client",
    "ContextExceeded",
    "ContractBroken",
    "DaemonUnavailable",
    "DeadlineExceeded",
    "Draining",
    "EngineLost",
    "InferOptions",
    "InvalidParams",
    "LimitReached",
    "ModelUnavailable",
    "NotPermitted",
    "Overloaded",
    "RequestCancelled",
    "RequestError",
    "SlowReader",
    "Stream",
]
