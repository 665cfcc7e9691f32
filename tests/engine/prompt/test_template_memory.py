"""The memory of chat templates: no piece is made that would take gigabytes, and ordinary templates notice nothing."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from car_base.ipc.refusal import Refusal
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.sandbox import chat_environment, local_now
from car_engine.prompt.template import ChatTemplate, InvalidTemplate, TemplateError
from car_engine.prompt.template_memory import TooMuchMemory
from tests.engine.prompt.chats import chat, user
from tests.engine.prompt.fakes import FakeVocabulary

_PROC = Path("/proc/self")
# Each piece of the 64 that follow is twice the one before.
DOUBLE = "{{% set n = namespace(x='ab' , y='ab') %}}{{% for i in range(64) %}}{}{{% endfor %}}{{{{ n.x | length }}}}"


SHARED = DOUBLE.format("{% set n.x = (n.x, n.x) %}{% set n.y = (n.y, n.y) %}")
# A list keeps what is made in each of the rounds.
KEPT = "{{% set n = namespace(l=[]) %}}{{% for i in range(99999) %}}{{% set x = n.l.append({}) %}}{{% endfor %}}"


def memory(name: str) -> int:
    """Return a figure of this process in MiB."""
    found = re.search(rf"{name}:\s+(\d+) kB", (_PROC / "status").read_text())
    assert found is not None
    return int(found[1]) // 1024


@contextmanager
def at_most(mib: int) -> Iterator[None]:
    """Fail if the process takes more memory than this at any time of the block."""
    (_PROC / "clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    yield
    assert memory("VmHWM") - before < mib


def evaluate(source: str) -> str:
    """Render a source once, as a template for a short chat is."""
    environment = chat_environment(local_now)
    template = environment.from_string(source)
    environment.memory.begin(2)
    return template.render(messages=[{"role": "user", "content": "hi"}])


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
        DOUBLE.format("{% set n.x = {'a': n.x, 'b': n.x} %}") + "{{ n.x.values() }}",
        DOUBLE.format("{% set n.x = {'a': n.x, 'b': n.x} %}") + "{{ n.x.items() ~ '' }}",
        DOUBLE.format("{% set n.x = [n.x, n.x] %}") + "{{ n.x | upper }}",
        DOUBLE.format("{% set n.x = [n.x, n.x] %}") + "{{ n.x is lower }}",
        DOUBLE.format("{% set n.x = [n.x, n.x] %}") + "{{ [1].index(n.x) }}",
        SHARED + "{{ [1][n.x].foo }}",
        SHARED + "{{ [1] | map(n.x) | list }}",
        "{{ '\U0001f600' * 100000000 }}",
        "{{ ('\u5b57' * 12000000) | list }}",
        "{{ ('a ' * 50000000) | wordcount }}",
        "{{ ('a ' * 30000000) | title }}",
        "{{ ([['a' * 10000000] * 2] * 1000) | map('list') | urlencode }}",
        "{{ ([1] * 1000) | tojson(indent=1000000) }}",
        "{% set n = namespace(x=[1] * 100000) %}{% for i in range(300) %}{% set n.x = [n.x] %}{% endfor %}"
        "{{ n.x | tojson(indent=16) }}",
        "{{ ([1] * 100000) | tojson(separators=('x' * 1000000, ':')) }}",
        "{{ ('%(a)s' * 1000) | format(a='x' * 1000000) }}",
        "{{ ([(('x' * 10000000) | safe).join] * 1000) | string }}",
        "{{ ('{}' | safe).format('&' * 60000000) }}",
        "{{ ('' | safe).escape('&' * 60000000) }}",
        "{{ ('' | safe).join(['&' * 20000000] * 6) }}",
        "{{ ('' | safe) + '&' * 60000000 }}",
        "{{ 'a'.center(50000000, '\U0001f600') }}",
        "{{ ('\ufbf9' * 10000000).encode('ascii', 'namereplace') }}",
        "{{ ('\t' * 1000).encode().expandtabs(10000000) }}",
        "{{ '%1000000000d'.encode() % 1 }}",
        "{{ (1).to_bytes(byteorder='big', length=1000000000) }}",
        "{{ ''.maketrans('a' * 30000000, 'b' * 30000000) }}",
        "{{ strftime_now('%255d' * 4000000) }}",
        KEPT.format("cycler(*range(99999))"),
        KEPT.format("namespace({}.fromkeys(range(99999)))"),
        KEPT.format("range(1000, 99999) | list"),
        KEPT.format("({}.fromkeys(range(99999)) | items).items"),
        KEPT.format("([1] * 1000000) | batch(1000) | list"),
        KEPT.format("('a' * 9999999 ~ ',b').partition(',')"),
        "{% set n = namespace(l=[]) %}{% macro keep() %}{% set x = n.l.append(varargs) %}{% endmacro %}"
        "{% for i in range(999) %}{{ keep(*range(99999)) }}{% endfor %}",
    ],
)
def test_a_piece_that_would_take_gigabytes_is_never_made(source: str) -> None:
    with at_most(mib=400), pytest.raises((TooMuchMemory, RecursionError)):
        evaluate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 | round(-100000000) }}",
        "{{ 1 | round(100000000, 'floor') }}",
        "{{ ('f' * 30000000) | int(base=16) }}",
        "{{ (1).from_bytes(('f' * 15000000).encode(), 'big') }}",
        SHARED + "{{ n.x == n.y }}",
        SHARED + "{{ 1 < 2 < n.x }}",
        SHARED + "{{ n.x in [n.y] }}",
        SHARED + "{{ n.x is eq(n.y) }}",
        SHARED + "{{ n.x is filter }}",
        SHARED + "{{ {n.x: 1} }}",
        SHARED + "{{ {}[n.x] }}",
        SHARED + "{{ {}.get(n.x) }}",
        SHARED + "{{ {}.fromkeys([n.x]) }}",
        SHARED + "{{ dict([[n.x, 1]]) }}",
        SHARED + "{{ [n.x].count(n.y) }}",
        SHARED + "{{ [n.x, n.y] | sort }}",
        SHARED + "{{ [n.x, n.y] | unique | list }}",
        SHARED + "{{ [n.x, n.y] | max }}",
        SHARED + "{{ [[n.x], [n.y]] | groupby(0) }}",
        SHARED + "{% for i in [1, 2] %}{{ loop.changed(n.x if i == 1 else n.y) }}{% endfor %}",
        "{% set n = namespace(x=1) %}{% for i in range(2000) %}{% set n.x = (n.x,) %}{% endfor %}{{ {n.x: 1} }}",
    ],
)
def test_an_operation_that_would_keep_all_threads_waiting_for_hours_is_refused(source: str) -> None:
    with pytest.raises((TooMuchMemory, RecursionError)):
        evaluate(source)


def test_a_text_that_is_too_long_is_refused_before_it_is_cut_at_marks() -> None:
    limit = ContextLimit(4096, 100)
    for source in ("{{ ('%c' % 64976 ~ 'a') * 9000000 }}", "{{ '%c' % 64976 * 20000000 }}"):
        template = ChatTemplate(source, FakeVocabulary(["<s>"]))
        with at_most(mib=400), pytest.raises(Refusal, match="context_exceeded"):
            template.render(chat(*user("hi")), limit.check_bytes)


def test_a_source_of_megabytes_is_not_compiled() -> None:
    with pytest.raises(InvalidTemplate, match="it has 600,000 characters, the limit is 524,288"):
        render("a" * 600_000)


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
