"""The progress of an answer in its grammar."""

from random import Random
from typing import Any

import pytest

from car_engine.grammar.constraint import Constraint, ConstraintError, Constraints
from car_engine.grammar.gbnf import parse
from car_engine.grammar.lark import as_lark
from car_engine.grammar.schema import as_lark as schema_as_lark
from tests.engine.grammar.schemas import BEGIN, CONTROL, END, ENDS, PIECES, THINK, TURN, constraints


@pytest.fixture(scope="module")
def grammars() -> Constraints:
    """A compiler for the small vocabulary."""
    made = constraints()
    made.compile(0, gbnf('root ::= "a"'))
    return made


def gbnf(text: str) -> str:
    return as_lark(parse(text))


def token(piece: bytes) -> int:
    return PIECES.index(piece)


def pieces(constraint: Constraint) -> set[bytes]:
    """Return the bytes of what may come next; ends are left out."""
    return {PIECES[one] for one in constraint.allowed() if one not in ENDS}


def test_what_may_come_is_what_the_grammar_begins_with(grammars: Constraints) -> None:
    constraint = grammars.start(0, gbnf('root ::= "abc"'))
    assert pieces(constraint) == {b"a", b"ab"}
    assert not ENDS & set(constraint.allowed())


def test_tokens_of_the_same_bytes_may_both_come(grammars: Constraints) -> None:
    twins = [one for one, piece in enumerate(PIECES) if piece == b"ab"]
    assert len(twins) == 3
    constraint = grammars.start(0, gbnf('root ::= "ab"'))
    assert set(twins) < set(constraint.allowed())
    for twin in twins:
        again = grammars.start(0, gbnf('root ::= "ab"'))
        assert again.advance(twin)
        assert again.complete


def test_what_may_come_is_in_ascending_order(grammars: Constraints) -> None:
    allowed = grammars.start(0, gbnf("root ::= .*")).allowed().tolist()
    assert allowed == sorted(set(allowed))


def test_a_refused_token_changes_nothing(grammars: Constraints) -> None:
    constraint = grammars.start(0, gbnf('root ::= "abc"'))
    assert constraint.advance(token(b"a"))
    for wrong in (token(b"c"), token(b"true"), BEGIN, THINK, END):
        assert not constraint.advance(wrong)
    assert constraint.advance(token(b"b"))
    assert constraint.advance(token(b"c"))


def test_it_is_complete_where_nothing_may_follow(grammars: Constraints) -> None:
    constraint = grammars.start(0, gbnf('root ::= "ab" "c"?'))
    assert not constraint.complete
    assert constraint.advance(token(b"ab"))
    assert not constraint.complete
    assert constraint.advance(token(b"c"))
    assert constraint.complete


def test_an_end_may_come_exactly_where_the_grammar_may_end(grammars: Constraints) -> None:
    constraint = grammars.start(0, gbnf('root ::= ("ab")+'))
    for _ in range(3):
        assert constraint.advance(token(b"a"))
        assert not ENDS & set(constraint.allowed())
        assert not constraint.advance(END)
        assert constraint.advance(token(b"b"))
        assert set(constraint.allowed()) >= ENDS
    assert constraint.advance(TURN)


def test_an_empty_answer_is_an_end_at_once(grammars: Constraints) -> None:
    constraint = grammars.start(0, gbnf('root ::= ""'))
    assert set(constraint.allowed()) == ENDS
    assert constraint.advance(END)


def test_no_control_token_fits_any_text(grammars: Constraints) -> None:
    assert not (CONTROL - ENDS) & set(grammars.start(0, gbnf("root ::= .*")).allowed())


def test_a_grammar_can_ask_for_a_control_token(grammars: Constraints) -> None:
    constraint = grammars.start(0, f'start: <[{THINK}]> "a"')
    assert list(constraint.allowed()) == [THINK]
    assert not constraint.advance(token(b"a"))
    assert constraint.advance(THINK)
    assert pieces(constraint) == {b"a"}


def test_a_character_may_come_in_pieces_but_whole(grammars: Constraints) -> None:
    constraint = grammars.start(0, gbnf('root ::= "é"'))
    assert pieces(constraint) == {b"\xc3", b"\xc3\xa9"}
    assert constraint.advance(0xC3)
    assert pieces(constraint) == {b"\xa9"}


def test_an_opener_may_come_first_and_leaves_the_grammar_at_its_beginning(grammars: Constraints) -> None:
    constraint = grammars.start(0, gbnf('root ::= "ab"'), think_token=THINK)
    assert THINK not in constraint.allowed(), "it is the model's own choice"
    assert constraint.advance(THINK)
    assert not constraint.advance(THINK), "it comes once"
    assert constraint.advance(token(b"ab"))
    assert constraint.complete


def test_after_another_first_token_no_opener_may_come(grammars: Constraints) -> None:
    constraint = grammars.start(0, gbnf('root ::= "ab"'), think_token=THINK)
    assert constraint.advance(token(b"a"))
    assert not constraint.advance(THINK)


def test_answers_under_one_grammar_do_not_know_of_each_other(grammars: Constraints) -> None:
    first, second = (grammars.start(0, gbnf('root ::= "ab" | "cd"')) for _ in range(2))
    assert first.advance(token(b"a"))
    assert second.advance(token(b"c"))
    assert (pieces(first), pieces(second)) == ({b"b"}, {b"d"})


@pytest.mark.parametrize("text", ["start: nowhere", "start: /(/", "nothing", "", 'start: "a', "start: %json {"])
def test_what_is_no_grammar_is_refused(grammars: Constraints, text: str) -> None:
    with pytest.raises(ConstraintError):
        grammars.compile(0, text)


INVALID: list[dict[str, Any]] = [
    {"type": "frob"},
    {"type": []},
    {"type": 5},
    {"$ref": "#/nowhere"},
    {"$ref": "https://example.org/schema"},
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"type": "string", "pattern": "("},
    {"type": "string", "pattern": "(?=a)b"},
    {"type": "string", "pattern": 5},
    {"type": "string", "format": "no such format"},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "integer", "minimum": 5, "maximum": 2},
    {"type": "array", "minItems": 3, "maxItems": 1},
    {"type": "array", "uniqueItems": True},
    {"properties": 5},
    {"properties": {"a": 5}},
    {"type": "object", "required": ["a"], "properties": {"a": False}},
    {"type": "object", "patternProperties": {"(": {}}},
    {"enum": []},
    {"enum": 5},
    {"not": {}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
]


@pytest.mark.parametrize("schema", INVALID, ids=str)
def test_a_schema_that_is_invalid_or_not_supported_is_refused(grammars: Constraints, schema: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError):
        grammars.compile(0, schema_as_lark(schema))


def test_after_a_refusal_the_next_grammar_is_as_good_as_ever(grammars: Constraints) -> None:
    with pytest.raises(ConstraintError):
        grammars.compile(0, "start: nowhere")
    assert pieces(grammars.start(0, gbnf('root ::= "abc"'))) == {b"a", b"ab"}


@pytest.mark.slow
def test_a_lexer_at_its_limit_fails_one_answer_and_not_those_after_it(grammars: Constraints) -> None:
    text = schema_as_lark({"type": "string", "pattern": "^(a|b|ab)*c(.{0,1000}x){100}$"})
    with pytest.raises(ConstraintError):
        exhaust(grammars, text)
    assert pieces(grammars.start(0, text)) >= {b'"'}


def exhaust(grammars: Constraints, text: str) -> None:
    """Write answers until the lexer that they share is at its limit."""
    random = Random(1)
    for _ in range(20):
        constraint = grammars.start(0, text)
        while not constraint.complete:
            constraint.advance(random.choice(constraint.allowed().tolist()))


def test_a_grammar_is_compiled_anew_for_another_user() -> None:
    made, text = constraints(), gbnf('root ::= "ab"')
    for owner in (1, 1, 2):
        made.compile(owner, text)
    assert repr(made).count("2 of 16") == 1
