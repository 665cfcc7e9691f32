"""The environment of chat templates: jinja2's sandbox, with the helpers that Hugging Face's templates expect.

Nothing here bounds time or memory: a template runs in a child, which is ended (`car_engine.child`).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import do_items
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment


class TemplateRefusal(jinja2.TemplateError):
    """A template refused a chat in its own words."""


class _Generation(Extension):
    """Blocks that mark a model's own words for training; they render as their content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block's body."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def chat_environment(now: Callable[[], datetime]) -> SandboxedEnvironment:
    """Return an environment for one model's template; `now` returns the local time."""
    environment = SandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
        autoescape=False,
        # Because a load would compute literals for chats that never come.
        optimized=False,
    )
    environment.filters["tojson"] = _json
    # A list, because templates count the items of a dictionary.
    environment.filters["items"] = _items
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def local_now() -> datetime:
    """Return the local time."""
    return datetime.now().astimezone()


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON, which has no generators, without the escapes for HTML of jinja2's own filter."""
    value = list(value) if isinstance(value, Iterator) else value
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return list(do_items(value))


def _refuse(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))
