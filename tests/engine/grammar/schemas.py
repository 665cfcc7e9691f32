"""Schemas and grammars to walk through: a small vocabulary, a generator of schemas, and random answers."""

import json
from collections.abc import Callable
from functools import partial
from itertools import product
from random import Random
from typing import Any

from car_engine.grammar.constraint import Constraint, Constraints

Json = Any
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = (
    b'": ',
    b'{"',
    b'", "',
    b"true",
    b"null",
    b"}}",
    b"], ",
    b"10",
    b"100",
    b"-1",
    b".5",
    b"\xc3\xa9",
    b"ab",
    b"ab",
)
PIECES: tuple[bytes, ...] = (
    *(bytes([byte]) for byte in range(256)),
    *WORDS,
    *(bytes(map(ord, pair)) for pair in product(LETTERS, repeat=2)),
    *(b"",) * 4,
)
BEGIN, END, TURN, THINK = range(len(PIECES) - 4, len(PIECES))
ENDS = frozenset({END, TURN})
CONTROL = frozenset({BEGIN, END, TURN, THINK})
# What closes something; a walk prefers it the longer it lasts.
CLOSING = tuple(PIECES.index(piece) for piece in (b'"', b"}", b"]", b"}}"))
TOKENS_MAX = 400


def constraints() -> Constraints:
    """Return a compiler for the vocabulary."""
    return Constraints(PIECES, ENDS, CONTROL)


def answer(constraint: Constraint, random: Random) -> bytes | None:
    """Return what random allowed tokens write up to an end, where one comes; it comes sooner the longer it lasts."""
    written = b""
    for place in range(TOKENS_MAX):
        allowed = constraint.allowed()
        finishing = ENDS & set(allowed.tolist())
        if finishing and random.random() < 0.3:
            return written
        token = _choice(allowed.tolist(), random, hurry=place / TOKENS_MAX)
        if token in ENDS:
            return written
        assert constraint.advance(token)
        written += PIECES[token]
        if constraint.complete:
            return written
    return None


def _choice(allowed: list[int], random: Random, hurry: float) -> int:
    closing = [token for token in CLOSING if token in allowed]
    if closing and random.random() < 0.2 + hurry:
        return random.choice(closing)
    plain = [token for token in allowed if PIECES[token].isascii()]
    return random.choice(plain or allowed)


class Schemas:
    """Draws schemas that grow less likely to nest with their depth."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        # Mutable state: the names of the definitions that a reference may name.
        self._defined: list[str] = []

    def schema(self) -> dict[str, Json]:
        """Return a schema, perhaps with definitions."""
        self._defined = []
        if self._random.random() < 0.7:
            return self._any(0)
        self._defined = ["node", "item"]
        leaf = self._scalar()
        node = {
            "type": "object",
            "properties": {"value": leaf, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
            "required": ["value"],
        }
        return {"$defs": {"node": node, "item": self._scalar()}, **self._object(0)}

    def _any(self, depth: int) -> dict[str, Json]:
        kinds: list[Callable[[], dict[str, Json]]] = [self._scalar, self._scalar, self._literal]
        if self._defined:
            kinds.append(self._reference)
        if depth < 3:
            nesting: list[Callable[[int], dict[str, Json]]]
            nesting = [self._object, self._object, self._array, self._any_of, self._nullable]
            kinds += [partial(one, depth) for one in nesting]
        return self._random.choice(kinds)()

    def _object(self, depth: int) -> dict[str, Json]:
        names = self._random.sample(["a", "b", "name", "x y", 'q"', "é"], self._random.randint(0, 4))
        schema: dict[str, Json] = {"type": "object", "properties": {name: self._any(depth + 1) for name in names}}
        schema["required"] = [name for name in names if self._random.random() < 0.6]
        if self._random.random() < 0.3:
            schema["additionalProperties"] = self._random.choice([False, True, {"type": "integer"}])
        return schema

    def _array(self, depth: int) -> dict[str, Json]:
        schema: dict[str, Json] = {"type": "array", "items": self._any(depth + 1)}
        least = self._random.randint(0, 2)
        if self._random.random() < 0.5:
            schema["minItems"] = least
        if self._random.random() < 0.7:
            schema["maxItems"] = least + self._random.randint(0, 2)
        if self._random.random() < 0.2:
            schema["prefixItems"] = [self._any(depth + 1)]
        return schema

    def _any_of(self, depth: int) -> dict[str, Json]:
        return {"anyOf": [self._any(depth + 1) for _ in range(self._random.randint(1, 3))]}

    def _nullable(self, depth: int) -> dict[str, Json]:
        return {"type": [self._random.choice(["string", "integer", "boolean"]), "null"]}

    def _reference(self) -> dict[str, Json]:
        return {"$ref": "#/$defs/" + self._random.choice(self._defined)}

    def _literal(self) -> dict[str, Json]:
        values: list[Json] = ["a", 'q"\\', "é\n", 1, -2.5, 0, None, True, False, [1, "a"], {"k": [None]}, ""]
        if self._random.random() < 0.5:
            return {"const": self._random.choice(values)}
        return {"enum": self._random.sample(values, self._random.randint(1, 4))}

    def _scalar(self) -> dict[str, Json]:
        kinds = [self._string, self._integer, self._number, self._fixed]
        return self._random.choice(kinds)()

    def _fixed(self) -> dict[str, Json]:
        return {"type": self._random.choice(["boolean", "null"])}

    def _string(self) -> dict[str, Json]:
        kind = self._random.random()
        if kind < 0.3:
            least = self._random.randint(0, 3)
            return {"type": "string", "minLength": least, "maxLength": least + self._random.randint(0, 4)}
        if kind < 0.6:
            patterns = [
                "^[a-c]+$",
                "^(a|bc){1,3}$",
                "x",
                "^[0-9]{2}-[0-9]{2}$",
                "[A-Z]$",
                "^\\d+(\\.\\d)?$",
                "^[^a-z]{0,3}$",
            ]
            return {"type": "string", "pattern": self._random.choice(patterns)}
        if kind < 0.75:
            return {
                "type": "string",
                "format": self._random.choice(["date", "time", "date-time", "uuid", "ipv4", "email"]),
            }
        return {"type": "string"}

    def _integer(self) -> dict[str, Json]:
        low = self._random.randint(-1000, 1000)
        schema: dict[str, Json] = {"type": "integer"}
        if self._random.random() < 0.6:
            schema[self._random.choice(["minimum", "exclusiveMinimum"])] = low
        if self._random.random() < 0.6:
            schema[self._random.choice(["maximum", "exclusiveMaximum"])] = low + self._random.randint(2, 500)
        if self._random.random() < 0.2:
            schema["multipleOf"] = self._random.choice([2, 5, 10])
        return schema

    def _number(self) -> dict[str, Json]:
        low = round(self._random.uniform(-100, 100), self._random.randint(0, 3))
        schema: dict[str, Json] = {"type": "number"}
        if self._random.random() < 0.5:
            schema[self._random.choice(["minimum", "exclusiveMinimum"])] = low
        if self._random.random() < 0.5:
            schema[self._random.choice(["maximum", "exclusiveMaximum"])] = round(low + self._random.uniform(0.5, 50), 2)
        return schema


def shown(schema: Json, written: bytes) -> str:
    """Return both for the message of a failure."""
    return f"{json.dumps(schema)} allowed {written!r}"
