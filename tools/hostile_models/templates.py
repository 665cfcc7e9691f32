"""Sixty chat templates that mean harm; each renders some text where its trick fails."""

_ESCAPED = "{{ 'escaped' }}"
_LONG = "99999"


def _loop(body: str, depth: int = 2) -> str:
    """Return nested loops around a body."""
    heads = "".join(f"{{% for i{level} in range({_LONG}) %}}" for level in range(depth))
    return heads + body + "{% endfor %}" * depth


def _grow(step: str, rounds: int = 64) -> str:
    """Return a template in which `n.x` becomes what a step makes of it, again and again."""
    start = "{% set n = namespace(x='ab', y=[1], z=1) %}"
    return f"{start}{{% for i in range({rounds}) %}}{step}{{% endfor %}}{{{{ n.x | string | length }}}}"


_LOOPS = {
    "two loops": _loop(""),
    "six loops": _loop("", 6),
    "loops that write": _loop("x"),
    "loops over a text": _loop("{% for c in 'abc' * 1000 %}{% endfor %}"),
    "a sort in a loop": _loop("{% set x = range(9999) | sort %}", 1),
    "a slice in a loop": _loop("{% for s in range(9999) | slice(99) %}{% endfor %}", 1),
    "a batch in a loop": _loop("{% for s in range(9999) | batch(9) %}{% endfor %}", 1),
    "a groupby in a loop": _loop("{% set g = [{'a': 1}, {'a': 2}] * 99 | groupby('a') %}", 1),
    "unique in a loop": _loop("{% set u = range(9999) | unique | list %}", 1),
    "a sum in a loop": _loop("{{ range(9999) | sum }}", 1),
    "a regular text in a loop": _loop("{{ ('a' * 9999) | wordwrap(1) | length }}", 1),
    "words in a loop": _loop("{{ ('http://a.b ' * 999) | wordwrap(9) | length }}", 1),
    "titles in a loop": _loop("{{ ('ab ' * 9999) | title | length }}", 1),
    "tags in a loop": _loop("{{ ('<' * 9999) | striptags | length }}", 1),
    "tojson in a loop": _loop("{{ range(9999) | list | tojson | length }}", 1),
    "a macro in a loop": "{% macro m(x) %}{{ x }}{% endmacro %}" + _loop("{{ m(1) }}"),
    "a call block in a loop": "{% macro m() %}{{ caller() }}{% endmacro %}" + _loop("{% call m() %}x{% endcall %}"),
    "lipsum": "{{ lipsum(n=100000000) }}",
    "a cycler in a loop": "{% set c = cycler(1, 2) %}" + _loop("{{ c.next() }}"),
    "a filter block in a loop": _loop("{% filter upper %}abc{% endfilter %}"),
}
_MEMORY = {
    "a long list": "{{ [1] * 1000000000 }}",
    "a long text": "{{ 'a' * 10000000000 }}",
    "a wide field": "{{ '%1000000000d' % 1 }}",
    "a wide field by argument": "{{ '%*d' % (1000000000, 1) }}",
    "many fields": "{{ ('%c' * 20000000) % ((65,) * 20000000) }}",
    "a wide format": "{{ '{:1000000000}'.format(1) }}",
    "a format map": "{{ '{x:>1000000000}'.format_map({'x': 1}) }}",
    "a centre": "{{ 'a' | center(1000000000) }}",
    "an indent": "{{ 'a\\nb' | indent(1000000000) }}",
    "a replacement": "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "a join": "{{ range(99999) | join('b' * 100000) }}",
    "texts that double": _grow("{% set n.x = n.x ~ n.x %}"),
    "lists that double": _grow("{% set n.y = n.y + n.y %}"),
    "numbers that double": _grow("{% set n.z = n.z * 99999999999 %}", 99999),
    "a list of itself": _grow("{% set n.y = [n.y, n.y] %}") + "{{ n.y | string | length }}",
    "a dictionary of texts": _grow("{% set n.x = {'a': n.x, 'b': n.x} | string %}"),
    "json of json": _grow("{% set n.x = n.x | tojson %}"),
    "escapes of escapes": _grow("{% set n.x = n.x | forceescape %}"),
    "held texts": _grow("{% set n.y = n.y + ['a' * 1000000 ~ i] %}", 99999),
    "a translation": "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
}
_DEPTH = {
    "a macro of itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "two macros of each other": "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    "many brackets": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "many lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "many conditions": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "many operators": "{{ " + "1 + " * 30000 + "1 }}",
    "many negations": "{{ " + "not " * 30000 + "1 }}",
    "many filters": "{{ 'a'" + " | upper" * 20000 + " }}",
    "many attributes": "{{ messages" + ".a" * 20000 + " }}",
    "a loop in a loop of itself": "{% for a in [[[1]]] recursive %}{{ loop([a]) }}{% endfor %}",
}
_FOLDING = {
    "a power of a power": "{{ 7 ** (7 ** 9) }}",
    "a large shift by powers": "{{ 2 ** 2 ** 40 }}",
    "a constant list": "{% set x = [0] * 10 ** 10 %}{{ x | length }}",
    "a constant text": "{% if 'a' * 10 ** 10 == 'b' %}x{% endif %}",
    "an ending without a beginning": "{% endfor %}",
}
_ESCAPES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}" + _ESCAPED,
    "globals of a macro": "{% macro m() %}{% endmacro %}{{ m.__globals__ }}{{ m._func.__globals__.os }}" + _ESCAPED,
    "the environment": "{{ self._TemplateReference__context.environment.loader }}" + _ESCAPED,
    "attributes by filter and format": "{{ ('{0.__class__.__init__.__globals__}' | attr('format'))(messages) }}",
    "importing modules": "{{ cycler.__init__.__globals__.os.popen('id').read() }}" + _ESCAPED,
}
TEMPLATES = {**_LOOPS, **_MEMORY, **_DEPTH, **_FOLDING, **_ESCAPES}


def one_for_all() -> tuple[str, int]:
    """Return a template that plays the trick of the number which a conversation begins with, and how many it has."""
    tricks = [*_LOOPS.values(), *_MEMORY.values(), *_ESCAPES.values()]
    cases = (f"{{% elif messages[0].content == '{number}' %}}{trick}" for number, trick in enumerate(tricks))
    return f"{{% if false %}}{''.join(cases)}{{% endif %}}{{{{ messages[0].content }}}}", len(tricks)
