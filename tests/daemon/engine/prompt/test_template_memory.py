"""The memory of chat templates: no piece is made that would take gigabytes, and ordinary templates notice nothing."""

import tracemalloc

import pytest

from car_daemon.engine.prompt.template import ChatTemplate, TemplateError
from tests.daemon.engine.prompt.chats import chat, user
from tests.daemon.engine.prompt.fakes import FakeVocabulary

_MIB = 1 << 20
# Each piece of the 64 that follow is twice the one before.
DOUBLE = "{{% set n = namespace(x='ab' , y='ab') %}}{{% for i in range(64) %}}{}{{% endfor %}}{{{{ n.x | length }}}}"


def render(source: str, text: str = "hi") -> str:
    vocabulary = FakeVocabulary(["<s>"])
    return vocabulary.written(ChatTemplate(source, vocabulary).render(chat(*user(text))).tokens)


@pytest.mark.parametrize(
    "source",
    [
        "{{ [1] * 1000000000 }}",
        "{{ 1000000000 * 'ab' }}",
        "{{ (1, 2) * 1000000000 }}",
        "{{ ('%c' * 20000000) % ((65,) * 20000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%.1000000000f' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ '{x:>1000000000}'.format_map({'x': 1}) }}",
        "{{ 7 ** (7 ** 9) }}",
        "{{ (2 ** 65000) * (2 ** 65000) }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ ('\\t' * 1000).expandtabs(10000000) }}",
        "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
        "{{ ('b' * 100000).join('a' * 100000) }}",
        "{{ ('a b ' * 10000000).split() }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a\\nb' | indent(1000000000) }}",
        "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
        "{{ range(99999) | join('b' * 100000) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ [1] | batch(1000000000, 'x') | list }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{{ ('a' * 60000000) | list }}",
        "{{ lipsum(1000000) }}",
        "{% set n = namespace(l=[]) %}{% for i in range(999) %}{% set n.l = n.l + ['a' * 999999] %}{% endfor %}",
        DOUBLE.format("{% set n.x = n.x + n.x %}"),
        DOUBLE.format("{% set n.x = n.x ~ n.x %}"),
        DOUBLE.format("{% set n.x = [n.x, n.x] %}") + "{{ n.x }}",
        DOUBLE.format("{% set n.x = [n.x, n.x] %}") + "{{ n.x | tojson }}",
        DOUBLE.format("{% set n.x = [n.x, n.x] %}") + "{{ n.x | string }}",
        DOUBLE.format("{% set n.x = [n.x, n.x] %}") + "{{ '%s' % (n.x,) }}",
        DOUBLE.format("{% set n.x = [n.x, n.x] %}") + "{{ '{}'.format(n.x) }}",
        DOUBLE.format("{% set n.x = '%s%s' % (n.x, n.x) %}"),
        DOUBLE.format("{% set n.x = '{0.x}{0.x}'.format(n) %}"),
        DOUBLE.format("{% set n.x = [n.x, n.x] | join %}"),
        DOUBLE.format("{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}"),
        DOUBLE.format("{% set n.y = n.x[:] %}{% set n.x = n.x + n.y %}"),
    ],
)
def test_a_piece_that_would_take_gigabytes_is_never_made(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError) as error:
            render(source)
        assert tracemalloc.get_traced_memory()[1] < 400 * _MIB
    finally:
        tracemalloc.stop()
    assert error.value.reason == "invalid_params"


def test_the_refusal_has_the_line_and_both_figures() -> None:
    with pytest.raises(TemplateError) as error:
        render("\n{{ 'ab' * 1000000000 }}")
    assert str(error.value.data["why"]).startswith(
        "line 2: it would make a piece of 2,000,000,000 bytes, the limit leaves 134,"
    )


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


def test_a_template_has_the_same_memory_for_every_chat() -> None:
    template = ChatTemplate("{% set x = 'a' * 60000000 %}b", FakeVocabulary(["<s>"]))
    assert [len(template.render(chat(*user("hi"))).tokens) for _ in range(4)] == [1] * 4
