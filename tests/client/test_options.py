"""The typed options say what the daemon's definition says."""

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from car_client import calls
from car_client.options import InferOptions
from car_protocol.conversation import Tool, ToolChoice
from car_protocol.infer import InferParams, Lora
from car_protocol.sampling import Dry, Mirostat, Xtc

QUESTION = {"prompt", "tokens", "messages"}
# Its values are free-form: the daemon keeps them as JSON text, a caller gives plain data.
FREE_FORM = {"_meta"}
# Plain data is taken in place of the protocol's objects.
OR_PLAIN = {
    "tools": Sequence[Tool | Mapping[str, Any]],
    "tool_choice": ToolChoice | Mapping[str, Any],
    "lora": Sequence[Lora | Mapping[str, Any]],
    "xtc": Xtc | Mapping[str, Any],
    "dry": Dry | Mapping[str, Any],
    "mirostat": Mirostat | Mapping[str, Any],
}
# Options that the clients move into `_meta`.
IN_META = {"traceparent"}


def required_type(hint: Any) -> Any:
    """Return the type without None, since an option that is absent is left out."""
    if get_origin(hint) in (Union, UnionType):
        members = [member for member in get_args(hint) if member not in (type(None), msgspec.UnsetType)]
        return Union[tuple(members)]  # noqa: UP007 - built from a list
    return hint


def defined() -> dict[str, Any]:
    """Return the types of the request's members by their names on the wire."""
    hints = get_type_hints(InferParams)
    fields = msgspec.structs.fields(InferParams)
    return {field.encode_name: required_type(hints[field.name]) for field in fields}


def test_the_options_are_the_members_of_the_request() -> None:
    assert set(InferOptions.__annotations__) - IN_META == set(defined()) - QUESTION


def test_the_options_have_the_types_of_the_request() -> None:
    hints = {name: hint for name, hint in get_type_hints(InferOptions).items() if name not in IN_META}
    of_request = defined()
    different = {name for name, hint in hints.items() if hint != of_request[name]}
    assert different == FREE_FORM | OR_PLAIN.keys()
    assert {name: hints[name] for name in OR_PLAIN} == OR_PLAIN


def test_every_option_may_be_left_out() -> None:
    assert not InferOptions.__required_keys__


def test_objects_and_plain_data_are_the_same_request() -> None:
    as_objects: InferOptions = {
        "xtc": Xtc(probability=0.5, threshold=0.1),
        "dry": Dry(multiplier=0.8),
        "mirostat": Mirostat(version=2),
        "lora": (Lora(name="terse"),),
    }
    as_data: InferOptions = {
        "xtc": {"probability": 0.5, "threshold": 0.1},
        "dry": {"multiplier": 0.8},
        "mirostat": {"version": 2},
        "lora": [{"name": "terse"}],
    }
    first, second = (calls.infer("infer", "Hi", None, None, options).params for options in (as_objects, as_data))
    assert decoded(first) == decoded(second)
    assert decoded(first).lora == [Lora(name="terse", scale=1.0)]


def decoded(params: dict[str, Any]) -> InferParams:
    """Return a request's params as the daemon reads them."""
    return msgspec.json.decode(msgspec.json.encode(params), type=InferParams)
