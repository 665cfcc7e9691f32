"""Sandbox of chat templates: jinja2's own, with the helpers that Hugging Face's templates expect."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace, object_type_repr
from markupsafe import EscapeFormatter, Markup

from car_engine.prompt.rendering.sizes import (
    ESCAPED,
    size_of_call,
    size_of_field,
    size_of_filter,
    size_of_formatted,
    size_of_json,
    size_of_operation,
)
from car_engine.prompt.template_memory import OBJECT_BYTES, MemoryBudget, TooMuchMemory, size_of

_MOST_PATTERN = 100  # characters, of which each may become 256


class TemplateRefusal(jinja2.TemplateError):
    """A template refused a chat in its own words."""


class _OwnList(list[Any]):
    """A list that the template made: it may add to it, since no client's value changes."""


class _Namespace(Namespace):
    """A namespace that does not write its attributes, which may contain each other."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Undefined(Undefined):
    """An undefined value whose message leaves out a subscript that takes long to write."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        name = self._undefined_name
        if isinstance(name, str | int):
            return super()._undefined_message
        return f"{object_type_repr(self._undefined_obj)} has no element of this {type(name).__name__}"


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
    growth = 1  # of a character of a field

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Return a value as `!r` or `!s` has it."""
        self._env.memory.charge(0 if conversion is None else 4 * self._env.memory.text_size(value))
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Return one field."""
        self._env.memory.charge(self.growth * size_of_field(value, format_spec, self._env.memory))
        return super().format_field(value, format_spec)


class _BoundedEscapeFormatter(_BoundedFormatter, EscapeFormatter):
    """The same for text that is marked as safe."""

    growth = ESCAPED


class _BoundedCode(CodeGenerator):
    """Has the environment measure what jinja itself writes as an expression of Python."""

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Write `a == b`, or more of them in a row."""
        self.write("(")
        self._compared(node.expr, frame)
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        """Write `== b`."""
        self.write(f" {operators[node.op]} ")
        self._compared(node.expr, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Write `a ~ b`."""
        self._call("values.joined", nodes.Tuple(node.nodes, "load"), frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        """Write a literal."""
        self.write(f"environment.values.listed({OBJECT_BYTES + OBJECT_BYTES * len(node.items)}, ")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """Write a literal."""
        self.write(f"environment.values.made({4 * OBJECT_BYTES + 2 * OBJECT_BYTES * len(node.items)}, {{")
        for item in node.items:
            self._compared(item.key, frame)
            self.write(": ")
            self.visit(item.value, frame)
            self.write(", ")
        self.write("})")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        """Write a literal, unless it is the target of an assignment."""
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write(f"environment.values.made({OBJECT_BYTES + OBJECT_BYTES * len(node.items)}, ")
        super().visit_Tuple(node, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """Write a subscript; a slice is a copy."""
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.values.copied(")
        super().visit_Getitem(node, frame)
        self.write(")")

    def _compared(self, node: nodes.Expr, frame: Frame) -> None:
        if isinstance(node, nodes.Const):
            self.visit(node, frame)
        else:
            self._call("memory.checked", node, frame)

    def _call(self, method: str, argument: nodes.Expr, frame: Frame) -> None:
        self.write(f"environment.{method}(")
        self.visit(argument, frame)
        self.write(")")


class _Values:
    """Values that expressions of templates make, counted before."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory

    def joined(self, values: tuple[Any, ...]) -> str:
        """Return `a ~ b`."""
        self._memory.charge(sum(map(self._memory.text_size, values)))
        return "".join(map(str, values))

    def made(self, size: int, value: Any) -> Any:
        """Count a literal."""
        self._memory.charge(size)
        return value

    def listed(self, size: int, value: list[Any]) -> list[Any]:
        """Count a literal of a list."""
        self._memory.charge(size)
        return _OwnList(value)

    def copied(self, value: Any) -> Any:
        """Count a slice, which is at most as large as what is there already."""
        self._memory.charge(size_of(value))
        return _owned(value)

    def namespace(self, *args: Any, **kwargs: Any) -> Namespace:
        """Return a namespace with attributes of its own."""
        attributes = dict(*args, **kwargs)
        self._memory.charge(size_of(attributes))
        return _Namespace(attributes)

    def json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Return `value | tojson`; JSON has no generators."""
        if isinstance(value, Iterator):
            value = self._memory.items(value)
        self._memory.charge(size_of_json(value, indent, separators, self._memory))
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja's sandbox, in which every operation that makes something counts its bytes before."""

    # A constant of these is not computed when the template is compiled.
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _BoundedCode

    def __init__(self, **options: Any) -> None:
        self.memory = MemoryBudget()
        super().__init__(finalize=self._measured, **options)
        self.values = _Values(self.memory)
        del self.globals["lipsum"]  # It writes random text of any length.
        del self.filters["pprint"]  # It indents by depth.
        del self.filters["urlize"]  # Its time grows with the square of its text, without a pause for other threads.
        self.globals["namespace"] = self.values.namespace
        filters = self.filters | {"tojson": self.values.json}
        self.filters = {name: self._bounded(name, filter_) for name, filter_ in filters.items()}
        tests: dict[str, Any] = self.tests
        self.tests = tests | {name: self._checked(tests[name]) for name in _COMPARING_TESTS}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operation."""
        self.memory.charge(size_of_operation(operator, left, right, self.memory))
        return _owned(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may use an attribute."""
        if type(obj) is str:  # of which none changes it
            return SandboxedEnvironment.is_safe_attribute(self, obj, attr, value)
        return (type(obj) is _OwnList and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method, a macro or a function."""
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if name == "join" and isinstance(owner, str | bytes) and args:
            args = (self.memory.items(args[0]), *args[1:])
        given = (*args, *kwargs.values())
        self.memory.charge(OBJECT_BYTES * (1 + len(given)) + size_of_call(owner, name, given, self.memory))
        result = super().call(context, function, *args, **kwargs)
        self.memory.charge(size_of(result))
        return result

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return `obj[argument]`."""
        return super().getitem(obj, self.memory.checked(argument) if isinstance(argument, tuple) else argument)

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
        self.memory.charge(sum(map(size_of, found)))
        return "".join(found)

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
            if name == "format":
                self.memory.charge(self.memory.text_size(given[0]))
                self.memory.charge(size_of_formatted(str(given[0]), kwargs or tuple(given[1:]), self.memory))
            elif given:
                self.memory.charge(size_of_filter(name, given[0], given[1:], self.memory))
            result = filter_(*args, **kwargs)
            if name == "items":
                return self.memory.items(result)
            self.memory.charge(size_of(result))
            return _OwnList(result) if name == "list" else result

        return bounded

    def _checked(self, test: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(test)
        def checked(*args: Any) -> Any:
            return test(*map(self.memory.checked, args))

        return checked


# Filters that make a list or a text of all items.
_OF_ITEMS = frozenset({"batch", "groupby", "join", "list", "max", "min", "slice", "sort", "sum", "unique"})
# Tests that compare, hash or write their values.
_COMPARING_TESTS = (
    *("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt", "ne"),
    *("filter", "lower", "test", "upper"),
)


def chat_environment(now: Callable[[], datetime]) -> BoundedEnvironment:
    """Return an environment for one model's template; `now` returns the local time."""
    environment = BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
        autoescape=False,
        undefined=_Undefined,
        # Literals that the optimizer folds would be neither counted nor the template's own.
        optimized=False,
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: now().strftime(_short(pattern))
    return environment


def local_now() -> datetime:
    """Return the local time."""
    return datetime.now().astimezone()


def _refuse(message: object) -> NoReturn:
    raise TemplateRefusal(message if isinstance(message, str) else f"a {type(message).__name__} for a message")


def _short(pattern: str) -> str:
    if len(pattern) > _MOST_PATTERN:
        raise TooMuchMemory(f"the pattern of a time has {len(pattern):,} characters, the limit is {_MOST_PATTERN}")
    return pattern


def _owned(value: Any) -> Any:
    return _OwnList(value) if type(value) is list else value


def _is_iterated(name: str, value: Any) -> bool:
    """Return whether a filter takes the items of a value."""
    if name == "urlencode":
        return isinstance(value, Iterator)
    return name in _OF_ITEMS and not isinstance(value, Mapping | Undefined)
