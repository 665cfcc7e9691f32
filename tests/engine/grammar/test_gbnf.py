"""The reading of GBNF texts, and the reasons of refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_engine.grammar.gbnf import parse
from car_engine.grammar.tree import (
    CHARACTERS,
    LAST,
    NESTING_MAX,
    REPETITIONS_MAX,
    Alternatives,
    Characters,
    Grammar,
    GrammarError,
    GrammarProblem,
    Literal,
    Reference,
    Repetition,
    Sequence,
)


def root(body: str) -> tuple[Sequence, ...]:
    """Return the alternatives of a root with this body; it may refer to `other`."""
    return parse(f'root ::= {body}\nother ::= "o"').rules["root"].sequences


def characters(body: str) -> tuple[tuple[int, int], ...]:
    """Return the set of characters that a class holds."""
    ((item,),) = root(body)
    assert isinstance(item, Characters)
    return item.ranges


def refusal(text: str) -> tuple[GrammarProblem, int]:
    """Return why a text is refused, and where."""
    with pytest.raises(GrammarError) as refused:
        parse(text)
    return refused.value.problem, refused.value.line


A = Literal("a")


def test_rules_keep_their_order_and_their_lines() -> None:
    assert parse('\n# first\nroot ::= second\n\nsecond ::= "a" |\n  "b"\n') == Grammar(
        {
            "root": Alternatives(((Reference("second"),),), 3),
            "second": Alternatives(((A,), (Literal("b"),)), 5),
        }
    )


def test_a_sequence_ends_at_its_line() -> None:
    assert list(parse('root ::= "a"\nother ::= "b"').rules) == ["root", "other"]
    assert list(parse('root ::= "a"\r\nother ::= "b"\rthird ::= "c"').rules) == ["root", "other", "third"]


def test_a_rule_goes_on_after_its_sign_and_after_a_bar() -> None:
    assert parse('root ::=\n\n "a" | # this\n  # or this\n "b"') == parse('root ::=\n\n "a" | "b"')


def test_a_group_spans_lines() -> None:
    grammar = parse('root ::= (\n "a" # one\n "b"\n * | "c"\n) "d"')
    ((group, last),) = grammar.rules["root"].sequences
    assert last == Literal("d")
    assert isinstance(group, Reference)
    assert grammar.rules[group.name].sequences == ((A, Repetition(Literal("b"), 0, None)), (Literal("c"),))


def test_an_alternative_may_be_empty() -> None:
    assert root('| "a" | | "b"') == ((), (A,), (), (Literal("b"),))
    assert root('""') == ((Literal(""),),)
    assert parse("root ::=").rules["root"].sequences == ((),)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"\" \\ \n \r \t \[ \] \-", '" \\ \n \r \t [ ] -'),
        (r"\x41\u3042\U0001F600", "Aあ😀"),
        ("あ😀 # no comment", "あ😀 # no comment"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_a_literal_holds_its_characters(written: str, meant: str) -> None:
    assert root(f'"{written}"') == ((Literal(meant),),)


@pytest.mark.parametrize(
    ("written", "ranges"),
    [
        ("[a]", [(97, 97)]),
        ("[a-cb-e]", [(97, 101)]),
        ("[ca-b]", [(97, 99)]),
        ("[a-]", [(45, 45), (97, 97)]),
        ("[-a]", [(45, 45), (97, 97)]),
        (r"[a\-c]", [(45, 45), (97, 97), (99, 99)]),
        (r"[\[-\]]", [(91, 93)]),
        (r"[\x00-\u0010]", [(0, 16)]),
        ("[a^]", [(94, 94), (97, 97)]),
        ("[^a]", [(0, 96), (98, 0xD7FF), (0xE000, LAST)]),
        (r"[^\x00-\x1F\x7f-\U0010FFFF]", [(32, 126)]),
        (r"[\u0061-\UFFFFFFFF]", [(97, 0xD7FF), (0xE000, LAST)]),
        (r"[\ud000-\udfff]", [(0xD000, 0xD7FF)]),
        ("[ぁ-ゟ]", [(0x3041, 0x309F)]),
        (".", list(CHARACTERS)),
    ],
)
def test_a_class_holds_its_characters(written: str, ranges: list[tuple[int, int]]) -> None:
    assert characters(written) == tuple(ranges)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted), min_size=1, max_size=6), st.booleans())
def test_a_class_holds_a_character_as_its_ranges_say(ranges: list[list[int]], negated: bool) -> None:
    written = "".join(f"\\x{low:02x}-\\x{high:02x}" for low, high in ranges)
    held = characters(f"[{'^' if negated else ''}{written}]")
    for code in range(64):
        meant = any(low <= code <= high for low, high in ranges) != negated
        assert any(low <= code <= high for low, high in held) == meant


@pytest.mark.parametrize(
    ("written", "least", "most"),
    [
        ("*", 0, None),
        (" +", 1, None),
        ("?", 0, 1),
        ("{3}", 3, 3),
        ("{ 3 , }", 3, None),
        ("{0,2}", 0, 2),
        ("{002,5} ", 2, 5),
        (f"{{{REPETITIONS_MAX}}}", REPETITIONS_MAX, REPETITIONS_MAX),
        ("{" + "0" * 5000 + "7}", 7, 7),
    ],
)
def test_a_repetition_has_its_bounds(written: str, least: int, most: int | None) -> None:
    assert root('"ab"' + written) == ((Repetition(Literal("ab"), least, most),),)
    assert root("other" + written) == ((Repetition(Reference("other"), least, most),),)


def test_a_repetition_repeats_the_last_item_alone() -> None:
    assert root('"a" "b"* "c"') == ((A, Repetition(Literal("b"), 0, None), Literal("c")),)


def test_a_repetition_of_a_repetition_is_one_of_a_rule() -> None:
    grammar = parse('root ::= "a"{2}{3}')
    ((outer,),) = grammar.rules["root"].sequences
    assert isinstance(outer, Repetition)
    assert isinstance(outer.item, Reference)
    assert grammar.rules[outer.item.name].sequences == ((Repetition(A, 2, 2),),)


def test_names_take_letters_digits_dashes_and_underscores() -> None:
    assert list(parse('root ::= Rule-1 2_x\nRule-1 ::= "a"\n2_x ::= "b"').rules) == ["root", "Rule-1", "2_x"]


def test_a_rule_that_is_written_twice_says_what_it_says_last() -> None:
    assert root('"a"\nroot ::= "b"') == ((Literal("b"),),)


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("", GrammarProblem.NO_ROOT, 1),
        ('other ::= "a"', GrammarProblem.NO_ROOT, 1),
        ('root ::= "a"\n"b"', GrammarProblem.NO_NAME, 2),
        ('root ::= "a"\nother = "b"', GrammarProblem.NO_BODY, 2),
        ('root\n::= "a"', GrammarProblem.NO_BODY, 1),
        ('root ::= "a"\n\nother ::= missing', GrammarProblem.UNDEFINED, 3),
        ("root ::= first\nfirst ::= second ::= .", GrammarProblem.UNEXPECTED, 2),
        ('root ::= "a")', GrammarProblem.UNEXPECTED, 1),
        ('root ::= ("a"\n]', GrammarProblem.UNEXPECTED, 2),
        ("root ::= 'a'", GrammarProblem.UNEXPECTED, 1),
        ("root ::= \x00", GrammarProblem.UNEXPECTED, 1),
        ("root ::= <think>", GrammarProblem.NOT_CHARACTERS, 1),
        ("root ::= \n<[1000]>", GrammarProblem.NOT_CHARACTERS, 2),
        ("root ::= !<think>*", GrammarProblem.NOT_CHARACTERS, 1),
        ('root ::= .\nother ::= "a\n\n', GrammarProblem.OPEN_LITERAL, 2),
        ('root ::= "a\\"', GrammarProblem.OPEN_LITERAL, 1),
        ("root ::= .\nother ::= [a\n", GrammarProblem.OPEN_CLASS, 2),
        ("root ::= [a-", GrammarProblem.OPEN_CLASS, 1),
        ("root ::= (\n.\n", GrammarProblem.OPEN_GROUP, 1),
        ('root ::= "\n\\d"', GrammarProblem.ESCAPE, 2),
        ('root ::= "\\', GrammarProblem.ESCAPE, 1),
        ('root ::= "\\x4"', GrammarProblem.ESCAPE, 1),
        ("root ::= [\\u12g4]", GrammarProblem.ESCAPE, 1),
        ('root ::= "\\U00110000"', GrammarProblem.NO_CHARACTER, 1),
        ('root ::= "\\ud83d\\ude00"', GrammarProblem.NO_CHARACTER, 1),
        ('root ::= "\ud83d"', GrammarProblem.NO_CHARACTER, 1),
        ("root ::= [\\U00110000]", GrammarProblem.NO_CHARACTER, 1),
        ("root ::= []", GrammarProblem.EMPTY_CLASS, 1),
        ("root ::= [^]", GrammarProblem.EMPTY_CLASS, 1),
        ("root ::= [\\ud800]", GrammarProblem.EMPTY_CLASS, 1),
        ("root ::= [^\\x00-\\U0010ffff]", GrammarProblem.EMPTY_CLASS, 1),
        ("root ::= [z-a]", GrammarProblem.REVERSED_RANGE, 1),
        ("root ::= *", GrammarProblem.NOTHING_REPEATED, 1),
        ('root ::= "a" | ?', GrammarProblem.NOTHING_REPEATED, 1),
        ("root ::= .{}", GrammarProblem.COUNT, 1),
        ("root ::= .{,3}", GrammarProblem.COUNT, 1),
        ("root ::= .{1;3}", GrammarProblem.COUNT, 1),
        ("root ::= .{1\n}", GrammarProblem.COUNT, 1),
        ("root ::= .{1", GrammarProblem.COUNT, 1),
        ("root ::= .{3,2}", GrammarProblem.REVERSED_COUNT, 1),
        (f"root ::= .{{{REPETITIONS_MAX + 1}}}", GrammarProblem.LARGE_COUNT, 1),
        ("root ::= .{1," + "9" * 5000 + "}", GrammarProblem.LARGE_COUNT, 1),
        ("root ::= " + "(" * 100_000, GrammarProblem.TOO_DEEP, 1),
        ("root ::= " + "." * 250_000, GrammarProblem.TOO_LARGE, 1),
        ("root ::= [" + "." * 250_000 + "]", GrammarProblem.TOO_LARGE, 1),
    ],
)
def test_a_text_that_is_no_grammar_is_refused(text: str, problem: GrammarProblem, line: int) -> None:
    assert refusal(text) == (problem, line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("root ::= root", 1),
        ('root ::= root "a" | "b"', 1),
        ('root ::= .\nexpression ::= "(" | expression "+"', 2),
        ("root ::= .\none ::= two .\ntwo ::= three\nthree ::= one | .", 2),
        ('root ::= ""? [ ]* root', 1),
        ('root ::= space root "x" | "y"\nspace ::= other\nother ::= " " | [a]{0,3} ""{2}', 1),
        ('root ::= (("a" | root) "b")', 1),
        ("root ::= (root .)*", 1),
        ("root ::= .{0} root", 1),
        ("root ::= (.*)+ root", 1),
    ],
)
def test_left_recursion_is_refused(text: str, line: int) -> None:
    assert refusal(text) == (GrammarProblem.LEFT_RECURSION, line)


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a" root | ""',
        'root ::= ("a"+)+ root?',
        'root ::= one root | "x"\none ::= "" "a"? "b"',
        'root ::= "(" root ")" root | ""',
        'root ::= ("a"?)*',
    ],
)
def test_other_recursion_is_none_of_the_left(text: str) -> None:
    assert "root" in parse(text).rules


def test_groups_nest_as_deep_as_is_allowed() -> None:
    assert parse("root ::= " + "(" * NESTING_MAX + "." + ")" * NESTING_MAX)
    assert refusal("root ::= \n" + "(" * (NESTING_MAX + 1) + ".")[0] is GrammarProblem.TOO_DEEP


def test_a_refusal_quotes_nothing_of_the_text() -> None:
    with pytest.raises(GrammarError) as refused:
        parse("root ::= secret")
    assert str(refused.value) == "a rule is not defined (line 1)"


@given(st.text(alphabet='ab"[]()|*+?{},01-^\\xu#.:= \n<é', max_size=40))
def test_any_text_is_read_or_refused_with_a_line_of_it(body: str) -> None:
    line = 1
    try:
        parse("root ::= " + body)
    except GrammarError as error:
        line = error.line
    assert 0 < line <= body.count("\n") + 1
