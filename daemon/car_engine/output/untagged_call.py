"""An answer that is one call without the tags of its family: an object alone, or in a fenced block."""

from collections.abc import Mapping

from car_engine.output.families import Family
from car_engine.output.held_arguments import holds
from car_engine.output.json_object import take_value, text_of
from car_engine.output.stream_buffer import Steps, StreamBuffer

_NONE = ("", "")


def take_untagged(buffer: StreamBuffer, family: Family, schemas: Mapping[str, str]) -> Steps[tuple[str, str]]:
    """Take an answer; return the name and the arguments of its call, both empty for any other text.

    A call has a name of `schemas` and arguments that hold by its schema, and nothing but its frame stands around it.
    Other texts are recognized as early as they differ, because the stream waits meanwhile.
    """
    yield from buffer.take_spaces()
    for before, after in family.untagged:
        if (yield from buffer.take_literal(before)):
            name, arguments = yield from _take_object(buffer, family.keys, schemas)
            if arguments and (yield from _ends_with(buffer, after)) and holds(arguments, schemas[name]):
                return name, arguments
            break
    return _NONE


def _take_object(buffer: StreamBuffer, keys: tuple[str, str], schemas: Mapping[str, str]) -> Steps[tuple[str, str]]:
    members = dict[str, str]()
    yield from buffer.take_spaces()
    opens = "{"
    while (yield from buffer.take_literal(opens)):
        yield from buffer.take_spaces()
        key = text_of((yield from take_value(buffer)))
        if key not in keys or key in members:
            return _NONE
        yield from buffer.take_spaces()
        if not (yield from buffer.take_literal(":")):
            return _NONE
        yield from buffer.take_spaces()
        value = (yield from take_value(buffer)) or ""
        members[key] = text_of(value) or "" if key == keys[0] else value
        if key == keys[0] and members[key] not in schemas:
            return _NONE
        yield from buffer.take_spaces()
        opens = ","
    name, arguments = (members.get(key, "") for key in keys)
    return (name, arguments) if name and (yield from buffer.take_literal("}")) else _NONE


def _ends_with(buffer: StreamBuffer, text: str) -> Steps[bool]:
    """Return whether nothing but a text is left of the answer, which is not cut."""
    yield from buffer.take_spaces()
    found = yield from buffer.take_literal(text)
    yield from buffer.take_spaces()
    return found and not (yield from buffer.peek()) and not buffer.cut
