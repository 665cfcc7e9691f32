"""Sandbox of chat templates: jinja2's own, with the helpers that Hugging Face's templates expect."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from markupsafe import EscapeFormatter, Markup

from car_daemon.engine.prompt.template_memory import (
    OBJECT_BYTES,
    MemoryBudget,
    size_of,
    size_of_call,
    size_of_field,
    size_of_filter,
    size_of_operation,
)


class TemplateRefusal(jinja2.TemplateError):
    """A template refused a chat in its own words."""


class _OwnList(list[Any]):
    """A list that the template made: it may add to it, since no client's value changes."""


class _Generation(Extension):
    """Blocks that mark a model's own words for training; they render as their content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block's body."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _BoundedFormatter(SandboxedFormatter):
    """Measures each field of `str.format` before it is written."""

    _env: "BoundedEnvironment"

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Return a value as `!r` or `!s` has it."""
        self._env.memory.charge(0 if conversion is None else 4 * self._env.memory.text_size(value))
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Return one field."""
        self._env.memory.charge(size_of_field(value, format_spec, self._env.memory))
        return super().format_field(value, format_spec)


class _BoundedEscapeFormatter(_BoundedFormatter, EscapeFormatter):
    """The same for text that is marked as safe."""


class _BoundedCode(CodeGenerator):
    """Has the environment measure what jinja itself writes as an expression of Python."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Write `a ~ b`."""
        self._call("joined", nodes.Tuple(node.nodes, "load"), frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        """Write a literal."""
        self.write(f"environment.listed({OBJECT_BYTES + OBJECT_BYTES * len(node.items)}, ")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """Write a literal."""
        self.write(f"environment.made({4 * OBJECT_BYTES + 2 * OBJECT_BYTES * len(node.items)}, ")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        """Write a literal, unless it is the target of an assignment."""
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write(f"environment.made({OBJECT_BYTES + OBJECT_BYTES * len(node.items)}, ")
        super().visit_Tuple(node, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """Write a subscript; a slice is a copy."""
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.copied(")
        super().visit_Getitem(node, frame)
        self.write(")")

    def _call(self, method: str, argument: nodes.Expr, frame: Frame) -> None:
        self.write(f"environment.{method}(")
        self.visit(argument, frame)
        self.write(")")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja's sandbox, in which every operation that makes something counts its bytes before."""

    # A constant of these is not computed when the template is compiled.
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _BoundedCode

    def __init__(self, **options: Any) -> None:
        self.memory = MemoryBudget()
        super().__init__(finalize=self._measured, **options)
        del self.globals["lipsum"]  # It writes random text of any length.
        filters = self.filters | {"tojson": _tojson}
        self.filters = {name: self._bounded(name, filter_) for name, filter_ in filters.items()}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operation."""
        self.memory.charge(size_of_operation(operator, left, right, self.memory))
        return _owned(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may use an attribute."""
        return (type(obj) is _OwnList and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method, a macro or a function."""
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if name == "join" and isinstance(owner, str | bytes) and args:
            args = (self.memory.items(args[0]), *args[1:])
        self.memory.charge(OBJECT_BYTES + size_of_call(owner, name, (*args, *kwargs.values()), self.memory))
        result = super().call(context, function, *args, **kwargs)
        self.memory.charge(size_of(result))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a measured `str.format` or `str.format_map` in place of the method."""
        if super().wrap_str_format(value) is None:
            return None
        text: str = value.__self__
        name: str = value.__name__
        formatter = _BoundedFormatter(self)
        if isinstance(text, Markup):
            formatter = _BoundedEscapeFormatter(self, escape=text.escape)

        def written(*args: Any, **kwargs: Any) -> str:
            formatted = (
                formatter.vformat(text, (), *args) if name == "format_map" else formatter.vformat(text, args, kwargs)
            )
            return formatted if type(text) is str else Markup(formatted)  # noqa: S704 - its fields were escaped

        return written

    def concat(self, pieces: Iterable[str]) -> str:
        """Return the text of a block or a macro."""
        found = self.memory.items(pieces)
        self.memory.charge(sum(map(len, found)))
        return "".join(found)

    def joined(self, values: tuple[Any, ...]) -> str:
        """Return `a ~ b`."""
        self.memory.charge(sum(map(self.memory.text_size, values)))
        return "".join(map(str, values))

    def made(self, size: int, value: Any) -> Any:
        """Count a literal."""
        self.memory.charge(size)
        return value

    def listed(self, size: int, value: list[Any]) -> list[Any]:
        """Count a literal of a list."""
        self.memory.charge(size)
        return _OwnList(value)

    def copied(self, value: Any) -> Any:
        """Count a slice, which is at most as large as what is there already."""
        self.memory.charge(size_of(value))
        return _owned(value)

    def _measured(self, value: Any) -> Any:
        """Count an output that is not a text yet."""
        if not isinstance(value, str):
            self.memory.charge(self.memory.text_size(value))
        return value

    def _bounded(self, name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
        before = 1 if hasattr(filter_, "jinja_pass_arg") else 0

        @wraps(filter_)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            given = [*args[before:], *kwargs.values()]
            if given and _is_iterated(name, given[0]):
                given[0] = self.memory.items(given[0])
                args = (*args[:before], given[0], *args[before + 1 :])
            if given:
                self.memory.charge(size_of_filter(name, given[0], given[1:], self.memory))
            result = filter_(*args, **kwargs)
            self.memory.charge(size_of(result))
            return _OwnList(result) if name == "list" else result

        return bounded


# Filters that make a list or a text of all items.
_OF_ITEMS = frozenset({"list", "join", "sort", "unique", "sum", "groupby", "slice"})


def chat_environment(now: Callable[[], datetime]) -> BoundedEnvironment:
    """Return an environment for one model's template; `now` returns the local time."""
    environment = BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
        autoescape=False,
        # Literals that the optimizer folds would be neither counted nor the template's own.
        optimized=False,
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def local_now() -> datetime:
    """Return the local time."""
    return datetime.now().astimezone()


def _refuse(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _owned(value: Any) -> Any:
    return _OwnList(value) if type(value) is list else value


def _is_iterated(name: str, value: Any) -> bool:
    """Return whether a filter takes the items of a value; JSON has no generators."""
    if name == "tojson":
        return isinstance(value, Iterator)
    return name in _OF_ITEMS and not isinstance(value, Mapping | Undefined)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
