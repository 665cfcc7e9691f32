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
from car_client.watch import StatusWatch
from car_protocol.answer import Answer, Chunk
from car_protocol.capacity import Capacity

if TYPE_CHECKING:
    from car_client.async_client import AsyncClient
    from car_client.async_stream import AsyncStream
    from car_client.async_watch import AsyncStatusWatch
else:
    _ASYNC = {"AsyncClient": "async_client", "AsyncStream": "async_stream", "AsyncStatusWatch": "async_watch"}

    def __getattr__(name):
        """Import the asyncio half when it is asked for: asyncio costs more than all the rest."""
        if name not in _ASYNC:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"car_client.{_ASYNC[name]}"), name)


__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncStatusWatch",
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
    "StatusWatch",
    "Stream",
]
