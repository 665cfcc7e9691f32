"""`tokenize` and `detokenize`."""

from typing import Annotated

from msgspec import Meta, Struct

from car_protocol.infer import TokenId
from car_protocol.meta import Params
from car_protocol.notes import note


class TokenizeParams(Params, frozen=True, kw_only=True):
    """The text to cut into tokens."""

    text: str
    model: str | None = None
    add_special: Annotated[bool, note("with what the model puts around a text")] = False
    parse_special: Annotated[bool, note("special tokens in the text count")] = False


class Tokens(Struct, frozen=True):
    """Token ids in order."""

    tokens: list[int]


class DetokenizeParams(Params, frozen=True, kw_only=True):
    """The tokens to write out; with `special` control tokens too."""

    tokens: Annotated[list[TokenId], Meta(max_length=1_000_000)]
    model: str | None = None
    special: Annotated[bool, note("control tokens are written out too")] = False


class Text(Struct, frozen=True):
    """Text; bytes that are no UTF-8 appear as U+FFFD."""

    text: Annotated[str, note("bytes that are no UTF-8 appear as U+FFFD")]
