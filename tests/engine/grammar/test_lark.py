"""A grammar keeps its meaning, character for character, on the way to the library that constrains answers."""

from contextlib import suppress

import pytest
from llguidance import LLMatcher

from car_engine.grammar.gbnf import parse
from car_engine.grammar.lark import as_lark
from car_engine.grammar.tree import DEPTH_MAX, GrammarError, GrammarProblem
from tests.engine.grammar.matching import accepts, matcher, tokenizer
from tests.pace import cpu_time

JSON = r"""
# a value, and spaces around what it is made of
root   ::= ws value
value  ::= (object | array | string | number | "true" | "false" | "null") ws
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair   ::= string ws ":" ws value
array  ::= "[" ws (value ("," ws value)*)? "]"
string ::= "\"" ([^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws     ::= ([ \t\n] ws)?
"""
ARITHMETIC = r"""
root ::= (expression "=" number "\n")+
expression ::= term ([-+*/] term)*
term ::= number | "(" expression ")"
number ::= [0-9]+
"""
LIST = 'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"'
CHESS = r"""
root ::= (
    # both move
    "1. " move " " move "\n"
    ([1-9] [0-9]? ". " move " " move "\n")*
)
move ::= (pawn | piece | castling) [+#]?
pawn ::= ([a-h] "x")? square ("=" [NBRQ])?
piece ::= [NBRQK] [a-h]? [1-8]? "x"? square
castling ::= "O-O" "-O"?
square ::= [a-h] [1-8]
"""
DECLARATION = r"""
root ::= type gap "*"? name array{0,2} ("," gap? name)* ";"
type ::= ("unsigned" gap)? ("int" | "long" (gap "long")? | "char") |
         "struct" gap name
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
array ::= "[" [0-9]* "]"
gap ::= [ \t]+
"""
JAPANESE = "root ::= word+ ([ \\t\\n] word+)*\nword ::= [ぁ-ゟ] | [ァ-ヿ] | [\\u4e00-\\u9fff] | [、。]"


@pytest.mark.parametrize(
    ("gbnf", "text"),
    [
        (JSON, '{"a": [1, -2.5e+10, {}, []], "é\\u00e9\\n": null}  '),
        (JSON, " true"),
        (ARITHMETIC, "1+(20*3)=61\n2=2\n"),
        (LIST, "- one\n- 二つ\n"),
        (CHESS, "1. e4 e5\n2. Nf3 Nc6\n3. Bb5 a6\n4. O-O exd8=Q+\n"),
        (DECLARATION, "unsigned long long *p[3][], q;"),
        (DECLARATION, "struct point origin;"),
        (DECLARATION, "int interest;"),
        (JAPANESE, "これは 漢字、カタカナ。"),
    ],
)
def test_a_usual_grammar_takes_a_text_of_its_kind(gbnf: str, text: str) -> None:
    assert accepts(gbnf, text)


@pytest.mark.parametrize(
    ("gbnf", "text"),
    [
        (JSON, '{"a": 01}'),
        (JSON, '{"a": 1,}'),
        (JSON, '"\x1f"'),
        (JSON, '"a'),
        (ARITHMETIC, "1+=2\n"),
        (ARITHMETIC, "1=(1)\n"),
        (LIST, "- one"),
        (LIST, "- \u2028\n"),
        (CHESS, "1. e9 e5\n"),
        (CHESS, "1. e4\n"),
        (DECLARATION, "int x[1][2][3];"),
        (DECLARATION, "int 1x;"),
        (JAPANESE, "これはabc"),
        (JAPANESE, "これは "),
    ],
)
def test_a_usual_grammar_refuses_a_text_of_another_kind(gbnf: str, text: str) -> None:
    assert not accepts(gbnf, text)


@pytest.mark.parametrize(
    ("gbnf", "takes", "refuses"),
    [
        ('root ::= [a-z]* "b"', ["aab", "b", "abab", "bb"], ["", "aba", "ab1b"]),
        ('root ::= "a"? "ab"', ["ab", "aab"], ["b", "aaab", "a"]),
        ('root ::= ("a" | "ab") ("c" | "bc")', ["ac", "abc", "abbc"], ["ab", "abcc", "bc"]),
        ('root ::= "if" [a-z]+ | [a-z]+ "!"', ["ifa", "if!", "a!"], ["if", "a", "!"]),
        ('root ::= . . "b" | [^b] "a" "c"', ["aab", "aac", "bbb", "\nab"], ["bac", "ab", "aad"]),
        ('root ::= [^a]{2} "é"?', ["bb", "éé", "ééé"], ["ab", "b", "béa"]),
        (
            'root ::= "a" | [b-d] | "é" | "ab" | "x" | "xa"',
            ["a", "c", "é", "ab", "x", "xa"],
            ["", "b1", "aa", "e", "xb"],
        ),
        ('root ::= "a" more{0,2}\nmore ::= "b" root | "c"', ["acc", "abac", "abacc"], ["accc", "ab"]),
        ('root ::= "" | "ab"{0} "c" | ("x"?)*', ["", "c", "xxx"], ["ab", "abc", "xc"]),
    ],
)
def test_characters_of_several_sets_are_tried_in_all_of_them(gbnf: str, takes: list[str], refuses: list[str]) -> None:
    assert [text for text in takes if not accepts(gbnf, text)] == []
    assert [text for text in refuses if accepts(gbnf, text)] == []


@pytest.mark.parametrize("character", [*map(chr, range(256)), "\u2028", "\ud7ff", "\ue000", "\uffff", "\U0010ffff"])
def test_every_character_can_be_asked_for_and_excluded(character: str) -> None:
    escaped = f"\\U{ord(character):08x}"
    assert accepts(f'root ::= "{escaped}"', character)
    assert accepts(f"root ::= [{escaped}]", character)
    assert accepts("root ::= .", character)
    assert not accepts(f"root ::= [^{escaped}]", character)
    assert not accepts(f"root ::= [^{escaped}]", "")


@pytest.mark.parametrize(
    ("count", "takes", "refuses"),
    [
        ("{7}", [7], [6, 8]),
        ("{3,17}", [3, 4, 16, 17], [0, 2, 18]),
        ("{0,100}", [0, 1, 99, 100], [101]),
        ("{50,}", [50, 51, 300], [0, 49]),
        ("{1999,2001}", [1999, 2000, 2001], [1998, 2002]),
    ],
)
def test_a_repetition_counts_exactly(count: str, takes: list[int], refuses: list[int]) -> None:
    for item in ('"a"', '("a" | "b" "b")'):
        assert [number for number in takes if not accepts(f"root ::= {item}{count}", "a" * number)] == []
        assert [number for number in refuses if accepts(f"root ::= {item}{count}", "a" * number)] == []


@pytest.mark.parametrize(
    "gbnf",
    [
        'root ::= "a" root | "a"',
        'root ::= ("a" root)?',
        'root ::= "a" root?',
        'root ::= "a" more\nmore ::= root | ""',
        'root ::= "a" (root | "b" root)?',
        'root ::= "a"+ | ("a" "a")*',
    ],
)
def test_rounds_of_right_recursion_have_no_limit(gbnf: str) -> None:
    assert accepts(gbnf, "a" * 5000)


@pytest.mark.slow
def test_a_list_of_words_is_as_quick_as_one_word() -> None:
    words = [f"{number:b}".translate({48: "x", 49: "y"}) + f"{number * 7919}" for number in range(5000)]
    gbnf = "root ::= " + " | ".join(f'"{word}"' for word in words)
    assert accepts(gbnf, words[4321])
    assert not accepts(gbnf, words[4321] + "9")


def test_a_list_of_characters_is_as_quick_as_one_character() -> None:
    listed = [chr(0x4E00 + 2 * number) for number in range(5000)]
    gbnf = "root ::= one*\none ::= " + " | ".join(f'"{character}"' for character in listed)
    assert accepts(gbnf, "".join(listed[::100]))
    assert not accepts(gbnf, listed[77] + chr(0x4E01))


def test_rules_that_the_root_does_not_reach_change_nothing() -> None:
    assert as_lark(parse('root ::= "a"\nother ::= root "b" third\nthird ::= .')) == as_lark(parse('root ::= "a"'))


def chain(length: int) -> str:
    """Return rules that each need the next one."""
    rules = (f'r{number} ::= "a" r{number + 1} | "b"' for number in range(length))
    return "\n".join(("root ::= r0", *rules, f'r{length} ::= "c"'))


def test_rules_within_rules_may_be_as_deep_as_is_safe() -> None:
    length = DEPTH_MAX - 3
    assert accepts(chain(length), "a" * length + "c")


def test_rules_within_rules_too_deep_for_the_library_are_refused() -> None:
    with pytest.raises(GrammarError) as refused:
        as_lark(parse(chain(5000)))
    assert refused.value.problem is GrammarProblem.TOO_DEEP


@pytest.mark.parametrize(
    "gbnf", ['root ::= "' + "a" * 90_000 + '"', "root ::= " + " ".join(f'"{chr(0x4E00 + n)}"' for n in range(12_000))]
)
def test_a_grammar_too_large_for_the_library_is_refused(gbnf: str) -> None:
    with pytest.raises(GrammarError) as refused:
        as_lark(parse(gbnf))
    assert refused.value.problem is GrammarProblem.TOO_LARGE


SIZE = 256 << 10
HOSTILE = {
    "open groups": "root ::= " + "(" * SIZE,
    "groups": "root ::= " + ("(" * 100 + '"a"' + ")" * 100) * (SIZE // 203),
    "alternatives": "root ::= " + '"a"|' * (SIZE // 4),
    "empty alternatives": "root ::= " + "|" * SIZE,
    "repetitions of repetitions": 'root ::= "a"' + "+" * SIZE,
    "a literal": 'root ::= "' + "ab" * (SIZE // 2) + '"',
    "a billion": 'root ::= ((("a"{1000}){1000}){1000})',
    "up to a billion": 'root ::= ((("a"{0,1000}){0,1000}){0,1000})',
    "many repetitions": "root ::= " + '"ab"{2,99999} ' * (SIZE // 14),
    "ambiguous": 'root ::= "x" root "y" | "x" root "z" | "x"',
    "very ambiguous": 'root ::= ("x"? ("x" | "xx") root)* "x"',
    "comments": "root ::= .\n" + "#\n" * (SIZE // 2),
    "a class": "root ::= [^" + "ab" * (SIZE // 2) + "]",
    "lines of rules": "root ::= .\n" + "\n".join(f"r{n} ::= r{n + 1}" for n in range(SIZE // 20)),
    "digits": "root ::= .{" + "9" * SIZE,
    "a chain": chain(SIZE // 32),
}


@pytest.mark.slow
@pytest.mark.parametrize("gbnf", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_grammar_takes_long_to_read_and_to_build(gbnf: str) -> None:
    with cpu_time() as spent, suppress(GrammarError):
        LLMatcher(tokenizer(), LLMatcher.grammar_from_lark(as_lark(parse(gbnf))), log_level=0)
    assert spent.seconds < 10


def test_an_ambiguous_grammar_costs_no_more_with_every_character() -> None:
    taken = matcher(HOSTILE["ambiguous"])
    with cpu_time() as spent:
        assert taken.try_consume_tokens(list(b"x" * 300 + b"yz" * 149 + b"y")) == 599
        assert taken.is_accepting()
    assert spent.seconds < 2
