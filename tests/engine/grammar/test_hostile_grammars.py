"""Hostile grammars cost a bounded time, and only the requests under them."""

from random import Random
from time import process_time
from typing import Any

import pytest

from car_engine.grammar.constraint import Constraint, ConstraintError
from car_engine.grammar.gbnf import parse
from car_engine.grammar.lark import as_lark
from car_engine.grammar.schema import as_lark as schema_as_lark
from tests.engine.grammar.schemas import PIECES, constraints
from tests.pace import cpu_time

# A compilation holds up other prompts, a token holds up other streams. The measured ones are far below.
COMPILE_S = 1.0
TOKEN_S = 0.1


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def divisors(*numbers: float) -> dict[str, Any]:
    return {"allOf": [{"type": "integer", "multipleOf": number} for number in numbers]}


HOSTILE: dict[str, str | dict[str, Any]] = {
    "a pattern that explodes": {"type": "string", "pattern": "^(a|b|ab)*c(.{0,1000}x){100}$"},
    "a pattern of 2^100 states": {"type": "string", "pattern": "(a|b)*a(a|b){100}$"},
    "nested counts": {"type": "string", "pattern": "^(((a{0,100}){0,100}){0,100})$"},
    "an endless string": {"type": "string", "minLength": 1_000_000},
    "an endless array": {"type": "array", "minItems": 1_000_000, "items": {"type": "integer"}},
    "a long enum": {"enum": [f"value {number * 7919 % 100_003}" for number in range(20_000)]},
    "many objects in an enum": {"enum": [{"a": number, "b": [number]} for number in range(1000)]},
    "many properties": {"type": "object", "properties": {f"property{n}": {"type": "string"} for n in range(500)}},
    "many ways": {
        "anyOf": [{"type": "object", "properties": {f"p{n}": {}}, "required": [f"p{n}"]} for n in range(500)]
    },
    "many patterns": {"anyOf": [{"type": "string", "pattern": f"^.*{number}$"} for number in range(300)]},
    "references that double": {
        "$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(25)} | {"a25": {}},
        "$ref": "#/$defs/a0",
    },
    "patterns that have to hold at once": {"allOf": [{"type": "string", "pattern": f"a.{{{n}}}"} for n in range(16)]},
    "a large divisor": divisors(99_999_989),
    "a divisor with digits behind the point": divisors(12_345.678),
    "divisors without a common one": divisors(997, 991, 983),
    "hundreds of divisors without a common one": divisors(*(2**62 + 2 * number + 1 for number in range(300))),
    "a divisor out of bounds": divisors(1e-300, 1e300),
    "deep nesting": nested(31),
    "a product of choices": {
        "allOf": [{"anyOf": [{"properties": {f"p{n}_{m}": {}}} for m in range(6)]} for n in range(8)]
    },
    "many repetitions": 'root ::= "a"{100000}',
    "one after another, all of them perhaps": "root ::= " + '"a"* ' * 300,
    "every way to cut": 'root ::= "a" root "a"? root? | "a"',
    "deep rules that fork": "root ::= r0\n"
    + "".join(f"r{n} ::= r{n + 1} r{n + 1}? | [a-z]\n" for n in range(40))
    + "r40 ::= [a-z]",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_costs_a_bounded_time(name: str) -> None:
    grammars = constraints()
    grammars.compile(0, as_lark(parse('root ::= "a"')))
    hostile = HOSTILE[name]
    text = as_lark(parse(hostile)) if isinstance(hostile, str) else schema_as_lark(hostile)
    try:
        with cpu_time() as spent:
            grammars.compile(0, text)
    except ConstraintError:
        return
    finally:
        assert spent.seconds < COMPILE_S
    for prefer in (b"", b"a", b"ab"):
        with cpu_time() as walked:
            most = slowest(grammars.start(0, text), prefer)
        assert most * walked.scale < TOKEN_S


def test_a_long_rule_behind_many_alternatives_is_not_copied_for_each_of_them() -> None:
    alternatives = " | ".join(["b"] * 2000)
    grammar = parse(f"root ::= {alternatives}\nb ::= {'. ' * 20_000}| . root | .")
    with cpu_time() as spent:
        as_lark(grammar)
    assert spent.seconds < COMPILE_S


def slowest(constraint: Constraint, prefer: bytes) -> float:
    """Walk on as far as it goes, with one token where it may come; return the most seconds that a token took."""
    random, most = Random(1), 0.0
    for _ in range(150):
        started = process_time()
        try:
            allowed = constraint.allowed().tolist()
            preferred = PIECES.index(prefer) if prefer else -1
            constraint.advance(preferred if preferred in allowed else random.choice(allowed))
        except ConstraintError:
            return most
        finally:
            most = max(most, process_time() - started)
        if constraint.complete:
            break
    return most
