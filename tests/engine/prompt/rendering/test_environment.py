"""The environment of chat templates: ordinary operations, and the helpers of Hugging Face's templates."""

import pytest

from tests.engine.prompt.chats import chat, opened, user
from tests.engine.prompt.fakes import FakeVocabulary


def render(source: str, text: str = "hi") -> str:
    vocabulary = FakeVocabulary(["<s>"])
    return vocabulary.written(opened(source, vocabulary).render(chat(*user(text))).tokens)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' * 3 ~ (1 + 2) }}", "aaa3"),
        ("{{ [1, 2] + [3] }}{{ (1,) * 2 }}{{ {'a': [1]} }}", "[1, 2, 3](1, 1){'a': [1]}"),
        ("{{ '%s-%5.1f|%%' % ('a', 2) }}{{ '%(a)s' % {'a': 1} }}", "a-  2.0|%1"),
        ("{{ '{:>4}{!r}{a}'.format(1, 'b', a=2) }}{{ '{a}'.format_map({'a': 1}) }}", "   1'b'21"),
        ("{{ ('<b>' | safe).format(1) }}{{ ('{}' | safe).format('<') }}", "<b>&lt;"),
        ("{{ [3, 1, 2] | sort | join('-') }}{{ 'cab' | list }}{{ 'abc' | reverse }}", "1-2-3['c', 'a', 'b']cba"),
        ("{{ messages | map(attribute='content') | list }}{{ messages[0:1] | length }}", "['hi']1"),
        ("{{ [1, 2, 3] | sum }}{{ [1, 1, 2] | unique | list }}{{ [[1], [2]] | sum(start=[]) }}", "6[1, 2][1, 2]"),
        ("{{ 'a,b'.split(',') }}{{ 'a b'.replace(' ', '_') }}{{ '-'.join(['a', 'b']) }}", "['a', 'b']a_ba-b"),
        ("{{ ['a', 'b'] | batch(3, 'x') | list }}{{ [1, 2] | slice(2) | list }}", "[['a', 'b', 'x']][[1], [2]]"),
        ("{% set a, b = (1, 2) %}{{ a }}{{ b }}{% for k, v in {'x': 1} | items %}{{ k }}{{ v }}{% endfor %}", "12x1"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(2) }}", "a1[2]"),
        ("{{ undefined_name }}{{ undefined_name | list }}{{ undefined_name | join }}{{ none }}", "[]None"),
        ("{{ 'a\\nb' | indent(2) }}{{ 'a' | center(3) }}{{ 'aa' | replace('a', 'b', 1) }}", "a\n  b a ba"),
        ("{{ 2 ** 10 }}{{ 7 % 4 }}{{ 2.5 * 2 }}{{ -1 * 'a' }}", "102435.0"),
    ],
)
def test_ordinary_operations_are_what_they_were(source: str, text: str) -> None:
    assert render(source) == text


def test_a_long_conversation_that_is_written_piece_by_piece_has_enough_memory() -> None:
    joined = "{% for i in range(30) %}{% set n.x = n.x ~ messages[0].content %}{% endfor %}"
    source = "{% set n = namespace(x='') %}" + joined + "{{ n.x[:2] }}"
    assert render(source, "hi" * 100_000) == "hi"
