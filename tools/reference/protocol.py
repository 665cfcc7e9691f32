"""The tables: members of the objects, methods, errors and limits."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Struct

from car_protocol.answer import Answer, Chunk, Progress
from car_protocol.capacity import Capacity
from car_protocol.conversation import ToolCall
from car_protocol.errors import REASONS
from car_protocol.infer import GenerationOptions, InferParams, PromptParams
from car_protocol.limits import Limits
from car_protocol.methods import METHODS, Method, schemas
from car_protocol.models import DeviceStatus, LoadProgress, Model, ModelDetails
from car_protocol.sampling import Sampling
from car_protocol.status import EngineStatus, Status
from tools.reference.words import LINKS, Schema, alternatives, as_json, definition, figure, in_words, note_of

_META = "_meta"
# Members of the params of every method; they have a row in the table of the request object.
_EVERYWHERE = ("person",)
# The meaning of members that the request object has too.
_AS_ASKED = "as in `infer`"
_ALL = "all members"
_AS_ANSWERED = "as in the answer object"
# A list of more params than these says how it begins.
_MOST_LISTED, _LISTED = 8, 2
# Members that a definition has of another one, which has a table.
_SHOWN = {"ModelStatus": Model.__struct_fields__}
Row = tuple[str, ...]


def methods() -> str:
    """Return what each method takes and returns."""
    rows = [
        (f"`{name}`", _takes(method), _gives(method.result), f"{method.summary} {method.note}".strip())
        for name, method in METHODS.items()
    ]
    return table(("method", "params", "result", "what it does"), rows)


def params() -> str:
    """Return the members of the params that have no section of their own; members of all params have it too."""
    asked = {row[0]: row for row in request_rows(InferParams)}
    rows = []
    for kind, names in _by_kind((name, method.params) for name, method in METHODS.items()):
        methods = ", ".join(names)
        own = _without(InferParams.__struct_fields__, request_rows(kind))
        own = [row for row in own if row[0].strip("`") not in _EVERYWHERE]
        same = [row[0] for row in own if row[3] == _AS_ASKED or _is_as(row, asked.get(row[0]))]
        rows += [(methods, *row) for row in own if row[0] not in same]
        rows += [(methods, ", ".join(same), "", "", _AS_ASKED)] if same else []
    return table(("method", "member", "range", "default", "meaning"), _named_once(said_once(rows, 1)))


def _is_as(row: Row, asked: Row | None) -> bool:
    """Return whether a member is the request object's; its note may be left out."""
    return asked is not None and row[:3] == asked[:3] and row[3] in ("", asked[3])


def results() -> str:
    """Return the members of the results that have no section of their own."""
    named = _by_kind((name, method.result) for name, method in METHODS.items() if _is_struct(method.result))
    shown = Answer.__struct_fields__
    rows = []
    for kind, names in named:
        methods = ", ".join(names)
        own = _without(shown, _answer_rows(kind))
        same = [row[0] for row in own if row[0].strip("`?") in shown and not row[2]]
        rows += [(methods, *row) for row in own if row[0] not in same]
        rows += [(methods, ", ".join(same), "", _AS_ANSWERED)] if same else []
    return table(("method", "member", "type", "meaning"), _named_once(said_once(rows, 1)))


def request() -> str:
    """Return the members of the request object: the prompt, its answer, how to run it, and how tokens are chosen."""
    own = {
        name: kind
        for kind in (InferParams, PromptParams, GenerationOptions, Sampling)
        for name in kind.__struct_fields__
    }
    order = (PromptParams, GenerationOptions, InferParams, Sampling)
    rows = sorted(request_rows(InferParams), key=lambda row: order.index(own[_top(row)]))
    return table(("member", "range", "default", "meaning"), said_once(rows))


def answered(kind: type[Struct], *, whole: bool = True) -> str:
    """Return the members of an object that the daemon sends, with those of the objects in it where it is `whole`."""
    rows = [row for row in _answer_rows(kind) if whole or "." not in row[0]]
    return table(("member", "type", "meaning"), said_once(rows))


def limits() -> str:
    """Return every limit with its default."""
    notes = {name: note for name, _, _, note in _rows(Limits)}
    rows = [(f"`{name}`", figure(value), notes[f"`{name}`"]) for name, value in msgspec.to_builtins(Limits()).items()]
    return table(("limit", "default", "what it bounds"), rows)


def errors() -> str:
    """Return every error."""
    rows = [
        (str(kind.code), f"`{reason}`", "yes" if kind.retryable else "no", _joined(kind.message, kind.when))
        for reason, kind in REASONS.items()
    ]
    return table(("code", "reason", "retryable", "when"), rows)


TABLES = {
    "methods": methods,
    "params": params,
    "results": results,
    "request": request,
    "answer": lambda: answered(Answer),
    "tool call": lambda: answered(ToolCall),
    "chunk": lambda: answered(Chunk, whole=False),
    "progress": lambda: answered(Progress),
    "load progress": lambda: answered(LoadProgress),
    "capacity": lambda: answered(Capacity),
    "limits": limits,
    "model": lambda: answered(Model),
    "model details": lambda: answered(ModelDetails),
    "engine": lambda: answered(EngineStatus),
    "device": lambda: answered(DeviceStatus),
    "status": lambda: answered(Status),
    "errors": errors,
}


def _takes(method: Method) -> str:
    if method.params.__name__ in LINKS:
        return LINKS[method.params.__name__]
    own = [row for row in _own(method.params) if row[0].strip("`") not in _EVERYWHERE]
    names = [row[0].strip("`") + ("" if row[2] == "required" else "?") for row in own]
    return _listed(names if len(names) <= _MOST_LISTED else [*names[:_LISTED], "..."])


def _gives(kind: Any) -> str:
    if not _is_struct(kind):
        return "object"
    if kind.__name__ in LINKS:
        return LINKS[kind.__name__]
    return _listed(name.strip("`") for name, _, _, _ in _own(kind))


def _listed(names: Iterable[str]) -> str:
    return f"`{{{', '.join(names)}}}`"


def _own(kind: type[Struct]) -> list[Row]:
    """Return the rows of an object's own members, without those inside of them."""
    return [row for row in _rows(kind) if "." not in row[0]]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _by_kind(named: Iterable[tuple[str, type[Struct]]]) -> list[tuple[type[Struct], list[str]]]:
    """Return the definitions without a section of their own, each with the methods that it belongs to."""
    found: dict[type[Struct], list[str]] = {}
    for name, kind in named:
        if kind.__name__ not in LINKS:
            found.setdefault(kind, []).append(f"`{name}`")
    return list(found.items())


def _without(shown: Collection[str], rows: Iterable[Row]) -> list[Row]:
    """Leave out what is inside of members that have a table of their own."""
    return [row for row in rows if _top(row) == row[0].strip("`?") or _top(row) not in shown]


def _top(row: Row) -> str:
    """Return the member that a row belongs to."""
    return re.split(r"[.\[]", row[0].strip("`"))[0]


def _answer_rows(kind: type[Struct]) -> Iterator[Row]:
    for name, words, _, note in _rows(kind, optional="?"):
        yield name, words, note


def request_rows(kind: type[Struct]) -> Iterator[Row]:
    for name, words, default, note in _rows(kind):
        yield name, words.removesuffix(" or null"), default, note


def _rows(kind: type[Struct], optional: str = "") -> list[Row]:
    """Return name, type, default and note of each member of an object, and of the objects in it."""
    return list(_members(kind.__name__, schemas([kind]), "", optional))


def _members(kind: str, components: dict[str, Any], path: str, optional: str) -> Iterator[Row]:
    schema, shown = components[kind], _SHOWN.get(kind, ())
    required = schema.get("required", [])
    for name, member in schema.get("properties", {}).items():
        if name == _META or name in shown:
            continue
        mark = "" if name in required else optional
        yield f"`{path}{name}`{mark}", in_words(member), _default(name in required, member), note_of(member)
        for inner, way in _inside(member):
            if inner not in LINKS:
                yield from _members(inner, components, f"{path}{name}{way}.", optional)


def _inside(member: Schema) -> Iterator[tuple[str, str]]:
    """Yield the definitions that a member holds, and how its name goes on to their members."""
    for each in alternatives(member):
        name = definition(each)
        if name is not None:
            yield name, ""
        elif "items" in each:
            for inner in alternatives(each["items"]):
                if (name := definition(inner)) is not None:
                    yield name, "[]"


def _default(required: bool, member: Schema) -> str:
    if required:
        return "required"
    default = member.get("default")
    # The members of an object have rows with their own defaults.
    has_rows = isinstance(default, dict) and any(_inside(member))
    return "" if default is None or has_rows else as_json(default)


def said_once(rows: Iterable[Row], at: int = 0) -> list[Row]:
    """Return rows in which an object's members stand once; column `at` has the names.

    Two or more members that an earlier object has in the same words become one row that names that object, and members
    of an object that is "as in" another one are left out. Neighbours of an object in the same words become one row.
    """
    kept = [row for row in dict.fromkeys(rows) if row]
    first: dict[Row, str] = {}
    same: dict[tuple[str, str], list[Row]] = {}
    for row in kept:
        holder, name = _split(row[at])
        earlier = first.setdefault((*row[:at], name, *row[at + 1 :]), holder)
        if holder and earlier != holder:
            same.setdefault((holder, earlier), []).append(row)
    dropped = {row: pair for pair, found in same.items() if len(found) > 1 for row in found}
    sizes = Counter(_split(row[at])[0] for row in kept)
    whole = {pair for pair in dropped.values() if len(same[pair]) == sizes[pair[0]] == sizes[pair[1]]}
    gone = {_path(row[at]) for row in dropped} | {_path(row[at]) for row in kept if row[-1].startswith("as in ")}
    shown = [_said(row, at, dropped.get(row), same, whole, gone) for row in kept]
    return list(_shortened(_joined_rows((row for row in shown if row), at), at))


def _joined_rows(rows: Iterable[Row], at: int) -> Iterator[Row]:
    """Yield rows; neighbours that differ in the member of one object alone are one row."""

    def words(row: Row) -> Row:
        return (*row[:at], _split(row[at])[0], *row[at + 1 :])

    for _, alike in groupby(rows, words):
        found = list(alike)
        holder, _ = _split(found[0][at])
        if len(found) == 1 or any(":" in row[at] for row in found):
            yield from found
        else:
            names = ", ".join(row[at] if not holder else f"`{_split(row[at])[1]}" for row in found)
            yield (*found[0][:at], f"`{holder}`: {names}" if holder else names, *found[0][at + 1 :])


def _shortened(rows: Iterable[Row], at: int) -> Iterator[Row]:
    """Yield rows in which a member of the object of the name above has no more than a dot before its own name."""
    above: Row | None = None
    for row in rows:
        object_named, names = re.fullmatch(r"(?:`([^`]+)`: )?(.*)", row[at]).groups()  # type: ignore[union-attr]  # any text matches
        holder = object_named or _split(row[at])[0]
        if holder and names != _ALL:
            known = (*row[:at], holder) == above
            own = names if object_named else f"`{_split(row[at])[1]}"
            cell = own.replace("`", "`.", 1) if known else own.replace("`", f"`{holder}.", 1)
            cell = re.sub(r", `", ", `.", cell)
            yield (*row[:at], cell, *row[at + 1 :])
        else:
            yield row
        above = (*row[:at], holder)


def _named_once(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows whose first cell stands in the first row of several alone."""
    above = ""
    for first, *rest in rows:
        yield ("" if first == above else first, *rest)
        above = first


def _said(
    row: Row,
    at: int,
    pair: tuple[str, str] | None,
    same: dict[tuple[str, str], list[Row]],
    whole: Collection[tuple[str, str]],
    gone: Collection[str],
) -> Row:
    """Return a row as it is said; the first row of several that an earlier object has stands for all of them."""
    holder, _ = _split(row[at])
    if any(f"{holder}.".startswith((f"{path}.", f"{path}[].")) for path in gone):
        return ()
    if pair is None:
        return row
    if row != same[pair][0]:
        return ()
    inside = _ALL if pair in whole else ", ".join(f"`{_split(each[at])[1]}" for each in same[pair])
    names = f"`{holder}`: {inside}"
    return (*row[:at], names, *("" for _ in row[at + 2 :]), f"as in `{pair[1]}`" if pair[1] else "as above")


def _split(name: str) -> tuple[str, str]:
    """Return the object that a member belongs to, and its name there."""
    holder, _, own = name.lstrip("`").rpartition(".")
    return holder, own


def _path(name: str) -> str:
    return name.strip("`?")


def _joined(*parts: str) -> str:
    return "; ".join(part.rstrip(".") for part in parts if part)


def table(heading: Row, rows: Iterable[Row]) -> str:
    lines = [heading, tuple("---" for _ in heading), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
