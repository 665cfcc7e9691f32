"""Random grammars mean to the library what the definition of GBNF says, at every place of random texts."""

from itertools import accumulate

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from car_engine.grammar.gbnf import parse
from car_engine.grammar.tree import Grammar, GrammarError, GrammarProblem
from tests.engine.grammar.matching import Recognizer, matcher

ALPHABET = "abcé"
RULES = ("root", "one", "two")

items = st.sampled_from(
    ['"a"', '"b"', '"ab"', '"é"', '"abc"', '""', "[ab]", "[b-c]", "[^a]", "[^bé]", ".", "one", "two", "root"]
)
suffixes = st.sampled_from(
    ["", "", "", "", "*", "+", "?", "{0}", "{1}", "{2}", "{2,}", "{0,2}", "{1,3}", "{3,5}", "?*"]
)
expressions = st.recursive(
    items,
    lambda inner: (
        st.builds("{}{}".format, inner, suffixes)
        | st.builds("{} {}".format, inner, inner)
        | st.builds("({} | {}){}".format, inner, inner, suffixes)
        | st.builds("( {}){}".format, inner, suffixes)
        | st.builds("( | {}){}".format, inner, suffixes)
    ),
    max_leaves=6,
)
bodies = st.lists(expressions, min_size=1, max_size=3).map(" | ".join)
grammars = st.tuples(*(bodies for _ in RULES)).map(
    lambda bodies: "\n".join(f"{name} ::= {body}" for name, body in zip(RULES, bodies, strict=True))
)


def usable(text: str) -> Grammar:
    """Return the grammar of a text, and give the example up if it is refused for left recursion."""
    try:
        return parse(text)
    except GrammarError as error:
        if error.problem is GrammarProblem.LEFT_RECURSION:
            reject()
        raise


def follows(taken: LLMatcher, character: str) -> bool:
    """Say whether a character may come next; the mask must agree on its first byte."""
    data = list(character.encode())
    valid = taken.validate_tokens(data) == len(data)
    if len(data) == 1:
        mask = taken.compute_bitmask()
        assert bool(mask[data[0] // 8] >> data[0] % 8 & 1) == valid
    return bool(valid)


@pytest.mark.slow
@settings(max_examples=400)
@given(grammars, st.text(ALPHABET, max_size=9))
def test_a_grammar_means_the_same_at_every_place_of_a_text(gbnf: str, text: str) -> None:
    grammar = usable(gbnf)
    taken = matcher(grammar)
    for prefix in accumulate(text, initial=""):
        if prefix and not taken.consume_tokens(list(prefix[-1].encode())):
            raise AssertionError(taken.get_error())
        assert taken.is_accepting() == Recognizer(grammar, prefix).accepts
        following = {character: Recognizer(grammar, prefix + character).viable for character in ALPHABET}
        if taken.is_stopped():
            assert not any(following.values())
            break
        assert {character: follows(taken, character) for character in ALPHABET} == following
        if len(prefix) == len(text) or not following[text[len(prefix)]]:
            break
