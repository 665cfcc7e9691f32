"""The values of a model's entry for members that a request leaves out."""

from typing import Any, TypeVar

from msgspec import UNSET, structs

from car_protocol.conversation import Message
from car_protocol.infer import InferParams
from car_protocol.models import Defaults
from car_protocol.text import TokenizeParams

P = TypeVar("P", bound=InferParams | TokenizeParams)
_SYSTEM_ROLES = ("system", "developer")


def with_defaults(params: P, defaults: Defaults) -> P:
    """Return the params with the entry's values in place of absent members."""
    given = {name: value for name, value in structs.asdict(defaults).items() if value is not None}
    system = given.pop("system", None)
    changes: dict[str, Any] = {
        name: value for name, value in given.items() if getattr(params, name, value) in (None, UNSET)
    }
    messages = params.messages
    if system is not None and messages and all(message.role not in _SYSTEM_ROLES for message in messages):
        changes["messages"] = [Message("system", system), *messages]
    return structs.replace(params, **changes) if changes else params
