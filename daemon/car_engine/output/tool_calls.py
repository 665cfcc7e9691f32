"""Reader of tool calls in an answer, by the table of families."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from car_base.ipc.frames import CallDelta
from car_base.ipc.types import ToolStyle
from car_engine.output.call_arguments import ArgumentsReader, take_slots
from car_engine.output.families import FAMILIES, Family, MessageHeader
from car_engine.output.json_object import is_object, take_value, text_of
from car_engine.output.literals import Kinds
from car_engine.output.stream_buffer import Markers, Steps, StreamBuffer, only
from car_engine.output.untagged_call import take_untagged
from car_protocol.conversation import Invalid


class Thought(NamedTuple):
    """A piece of reasoning."""

    text: str


# In the order of the answer.
Part = str | Thought | CallDelta
_NAMES = frozenset({"name", "tool_name", "function"})
_ARGUMENTS = frozenset({"arguments", "parameters"})
# The beginning of arguments in Python's notation; bounded, because it is looked for without being taken.
_SURPLUS = re.compile(r"[} \t\r\n]*")
_KEYWORD_START = re.compile(r"[ \t\r\n]{0,16}(?:\)|[A-Za-z_]\w{0,63}(?:[ \t\r\n]{0,16}=?)?)?")
_HEADER_LENGTH = 256


class _Members:
    """The members of a call that is an object, as far as they came."""

    def __init__(self) -> None:
        self.name = ""
        self.arguments = ""  # that stood before the name


class _OpenCall:
    """The call that is read: its pieces go into `parts`, and what was taken of the buffer belongs to it."""

    def __init__(
        self, parts: list[Part], buffer: StreamBuffer, new_id: Callable[[], str], functions: Kinds | None
    ) -> None:
        self._parts = parts
        self._buffer = buffer
        self._new_id = new_id
        self._functions = functions
        self._index = -1  # of the last call that was begun
        self._name = ""
        self.begun = False  # and not ended
        self.arguments: list[str] = []

    def begin(self, name: str) -> None:
        """Begin the next call."""
        self._buffer.drop()
        self.begun, self._name = True, name
        self._index += 1
        self._parts.append(CallDelta(self._index, id=self._new_id(), name=name))

    def write(self, text: str) -> None:
        """Add a piece of its arguments."""
        if text:
            self.arguments.append(text)
            self._parts.append(CallDelta(self._index, arguments=text))

    def end(self, *, closed: bool = True) -> None:
        """End the call; without any arguments it has an empty object, unless it is cut off before any."""
        if not self.arguments and closed and not self._buffer.cut:
            self.write("{}")
        self._parts.append(CallDelta(self._index, invalid=self._fault("".join(self.arguments)), ended=True))
        self.begun = False
        self.arguments.clear()

    def _fault(self, arguments: str) -> Invalid | None:
        if self._functions is not None and self._name not in self._functions:
            return "name"
        return None if is_object(arguments) else "arguments"


class _Found(NamedTuple):
    """The markers of a family that a reader searches for."""

    text: Markers  # in text
    frames: Markers  # in text without tools
    message: Markers  # in a message of reasoning
    message_ends: Markers
    arguments: Markers  # after arguments that are not JSON
    parameter: Markers  # after a parameter
    framing: frozenset[str]  # that are not part of the answer
    lines: frozenset[str]  # the framing that ends a line
    heads: frozenset[str]  # that begin a call


@cache
def _markers_of(family: Family) -> _Found:
    heads = [text.strip() for text in family.head[:1] if family.bare and isinstance(text, str)]
    parameter = family.parameter.open if family.parameter is not None else ()
    first = [text.strip() for text in (*family.head[:1], *parameter[:1]) if isinstance(text, str)]
    ends, starts = (family.header.ends, family.header.starts) if family.header is not None else ((), ())
    dropped = [text.strip() for text in family.dropped]
    frames = [*dropped, *ends, *starts]
    opens = [text.strip() for text in family.opens]
    sections = [text.strip() for text in family.sections]
    closes = [text.strip() for text in (*family.tail, family.close) if text.strip()]
    return _Found(
        text=Markers([*opens, *heads, *sections, *frames]),
        frames=Markers(frames),
        message=Markers([*ends, *starts]),
        message_ends=Markers(ends),
        arguments=Markers([*closes, *opens, *heads, *ends, *starts]),
        parameter=Markers([*closes, *opens, *first, *ends, *starts]),
        framing=frozenset((*dropped, *sections, *ends)),
        lines=frozenset(text.strip() for text in (*family.dropped, *family.sections) if text.endswith("\n")),
        heads=frozenset(heads),
    )


class ToolCallReader:
    """Read calls as they come; text that only begins like a call is released as text.

    `functions` are the names of the tools with the kinds of their parameters, None for any. Without `calls` only the
    texts around messages are read. `begun` is the part of a message's header that the prompt ends with; with `keep`
    reasoning is text. An answer that is one call without tags is a call if its arguments hold by the `schemas`.
    """

    def __init__(
        self,
        style: ToolStyle,
        new_id: Callable[[], str],
        functions: Kinds | None = None,
        *,
        calls: bool = True,
        begun: str = "",
        keep: bool = False,
        schemas: Mapping[str, str] | None = None,
    ) -> None:
        self._family = FAMILIES[style]
        self._found = _markers_of(self._family)
        self._functions = functions
        self._calls = calls
        self._keep = keep
        self._schemas = schemas or {}
        self._begun = begun  # until the first header was read
        self._buffer = StreamBuffer()
        self._parts: list[Part] = []  # released by this piece
        self._open = _OpenCall(self._parts, self._buffer, new_id, functions)
        self._reader = ArgumentsReader(
            self._family, self._buffer, self._found.arguments, self._found.parameter, self._counts, self._open.write
        )
        self._thinking = False
        self._buffer.feed(begun)
        self._steps = self._whole() if calls and self._family.is_whole else self._marked()

    @property
    def thinking(self) -> bool:
        """True inside a message of reasoning."""
        return self._thinking

    @property
    def may_think(self) -> bool:
        """True for families whose thoughts are messages: another one may always come."""
        return self._family.header is not None and self._family.header.thought is not None

    def push(self, text: str) -> list[Part]:
        """Read a piece of the answer."""
        self._buffer.feed(text)
        return self._advance()

    def finish(self, *, cut: bool = False) -> list[Part]:
        """Return the undecided rest, after the last piece; the beginning of a call is dropped if it was `cut`."""
        self._buffer.end(cut=cut)
        return self._advance()

    def _advance(self) -> list[Part]:
        next(self._steps, None)
        parts = [part for part in self._parts if part]
        self._parts.clear()
        return parts

    # Text and messages.

    def _marked(self) -> Steps[None]:
        """Read text with calls and messages in it."""
        markers, header = self._found.text if self._calls else self._found.frames, self._family.header
        if self._schemas and (yield from self._untagged()):
            return
        while (marker := (yield from self._buffer.copy_until_any(markers, self._parts.append))) is not None:
            if header is not None and marker in header.starts:
                yield from self._message(header)
            elif marker in self._found.framing:
                if marker in self._found.lines:
                    yield from self._buffer.take_literal("\n")
                self._buffer.drop()
            else:
                yield from self._run(bare=marker in self._found.heads)
        self._undecided()

    def _untagged(self) -> Steps[bool]:
        """Read an answer that is one call without its tags; False for any other text, which is put back."""
        name, arguments = yield from take_untagged(self._buffer, self._family, self._schemas)
        if not arguments:
            self._buffer.put_back()
            return False
        self._open.begin(name)
        self._open.write(arguments)
        self._open.end()
        return True

    def _whole(self) -> Steps[None]:
        """Read an answer that begins with its calls, or has none."""
        family, buffer = self._family, self._buffer
        listed = yield from self._lead()
        while (yield from self._call(objects=family.notation == "python" and not listed)):
            yield from buffer.drop_spaces()
            yield from buffer.take_literal(family.between.strip())
            yield from buffer.take_spaces()
            if not (yield from buffer.peek()):
                buffer.drop()
            if family.listed and (yield from buffer.take_literal("]")):
                listed = False
                yield from buffer.drop_spaces()
            if family.after and (yield from buffer.take_literal(family.after)):
                yield from buffer.drop_spaces()
            listed = (yield from self._lead()) or listed
        self._undecided()
        yield from self._buffer.copy_rest(self._parts.append)

    def _lead(self) -> Steps[bool]:
        """Take what may stand before a call that needs no marker; return whether it opens a list."""
        yield from self._buffer.take_spaces()
        for text in self._family.also:
            yield from self._buffer.take_literal(text)
            yield from self._buffer.take_spaces()
        return self._family.listed and (yield from self._buffer.take_literal("["))

    def _undecided(self) -> None:
        """Release the taken text; the beginning of a call that the answer's bound cut off is dropped."""
        taken = self._buffer.release()
        self._parts.append("" if self._buffer.cut and taken.strip() else taken)

    def _message(self, header: MessageHeader) -> Steps[None]:
        """Read the header of a message, and its body if that is not text."""
        virtual, self._begun = self._begun, ""
        complete = yield from self._header(header)
        text = self._buffer.release()
        called = header.call.search(text.removesuffix(header.end)) if header.call and self._calls and complete else None
        if called is not None:
            self._open.begin(called[1])
            yield from self._reader.json()
            yield from self._buffer.take_spaces()
            closed = (yield from self._buffer.take_marker(self._found.message_ends)) is not None
            closed = closed or not (yield from self._buffer.peek())
            self._buffer.drop()
            self._open.end(closed=closed)
        elif complete and header.thought is not None and header.thought.search(text.removesuffix(header.end)):
            yield from self._thought(text.lstrip())
        elif not complete or (header.text is not None and not header.text.search(text)):
            # Not a header after all; at the end of the answer its begin is no text.
            rest = text.removeprefix(virtual)
            self._parts.append("" if self._buffer.cut or rest.strip() == header.start else rest)

    def _header(self, header: MessageHeader) -> Steps[bool]:
        """Take the rest of a header; False if arguments, an end or its bound come first."""
        for _ in range(_HEADER_LENGTH):
            if (yield from self._buffer.take_literal(header.end)):
                return True
            character = yield from self._buffer.peek()
            if character == "\n":
                yield from self._buffer.take_spaces()
                return (yield from self._buffer.take_literal(header.end))
            if character in ("", "{") or (yield from self._buffer.sees(self._found.message_ends)):
                return False
            yield from self._buffer.take_literal(character)
        return False

    def _counts(self, marker: str) -> Steps[bool]:
        """Return whether a marker that was taken ends arguments that are not JSON.

        In an answer of messages it does if a message, or nothing, follows; else it is a part of the arguments.
        """
        header = self._family.header
        if header is None:
            return True
        if marker in header.starts:
            return (yield from self._header(header))
        yield from self._buffer.take_spaces()
        return (yield from self._buffer.sees(self._found.message)) or not (yield from self._buffer.peek())

    def _thought(self, header: str) -> Steps[None]:
        self._thinking = True
        self._reason(header if self._keep else "")
        # Any marker ends it at once: the grammar of an answer begins behind it.
        marker = yield from self._buffer.copy_until_any(self._found.message, self._reason, close=True)
        self._thinking = False
        if marker is None:
            rest = self._buffer.release()
            self._reason("" if self._buffer.cut else rest)
        elif marker in self._found.framing:
            self._reason(marker if self._keep else "")
            self._buffer.drop()
        else:
            self._buffer.put_back()

    def _reason(self, text: str) -> None:
        if text:
            self._parts.append(text if self._keep else Thought(text))

    # Calls.

    def _run(self, *, bare: bool) -> Steps[None]:
        """Read the calls after a marker; with `bare` the marker is the beginning of the first one."""
        family, buffer = self._family, self._buffer
        if family.listed:
            yield from buffer.take_spaces()
            yield from buffer.take_literal("[")
        if not (yield from self._call(bare=bare)):
            self._undecided()
            return
        while True:
            yield from self._drop_surplus()
            yield from buffer.drop_spaces()
            comma = family.listed and (yield from buffer.take_literal(","))
            yield from buffer.take_spaces()
            if comma and (yield from buffer.peek()) == "]":
                break
            if family.each and family.begins_with_name and not comma and (yield from buffer.peek()) != "{":
                break
            if not (yield from self._call(bare=False)):
                if comma or buffer.is_undecided:
                    self._undecided()
                    return
                break
        for text in ("]" if family.listed else "", family.close.strip()):
            yield from buffer.drop_spaces()
            yield from buffer.take_literal(text)
        yield from buffer.drop_spaces()

    def _drop_surplus(self) -> Steps[None]:
        """Drop brackets between a call and the end of the calls: small models close an object once too often."""
        close = self._family.close.strip()
        if close and (yield from self._buffer.take_run(_SURPLUS)).strip():
            if (yield from self._buffer.sees(only(close))):
                self._buffer.drop()
            else:
                self._buffer.put_back()

    def _call(self, *, bare: bool = False, objects: bool = False) -> Steps[bool]:
        """Read one call; False if the text is not a call, whose start then stays undecided.

        With `bare` the first text of its head was taken; with `objects` it can only be an object.
        """
        family = self._family
        if not bare:
            yield from self._buffer.take_spaces()
            if (yield from self._buffer.peek()) == "{":
                return (yield from self._object())
        objects = objects or family.notation in ("object", "keyed")
        if objects or not (slots := (yield from take_slots(self._buffer, family.head, begun=bare))):
            return False
        if family.follows and not slots.complete:
            yield from self._buffer.take_spaces()
            if (yield from self._buffer.peek()) not in (family.follows, "" if not self._buffer.cut else family.follows):
                return False
        if family.notation == "python" and family.is_whole and not (yield from self._shows_keywords(slots.name)):
            return False
        name = family.name_of(slots.name)
        self._open.begin(name)
        if not slots.closed:
            yield from self._reader.read((self._functions or {}).get(name, {}))
        closed = slots.closed or bool(self._open.arguments)
        for text in family.tail:
            yield from self._buffer.take_spaces()
            closed = (yield from self._buffer.take_literal(text.strip())) or closed
        closed = closed or (yield from self._buffer.sees(self._found.arguments))
        self._buffer.drop()
        self._open.end(closed=closed)
        return True

    def _shows_keywords(self, name: str) -> Steps[bool]:
        """Return whether arguments follow; a name of a tool is enough, because any text may begin like a call."""
        if name in (self._functions or ()):
            return True
        found = yield from self._buffer.peek_match(_KEYWORD_START)
        return found.endswith(("=", ")"))

    def _object(self) -> Steps[bool]:
        """Read a call that is one object; False if the text is not one."""
        buffer = self._buffer
        yield from buffer.take_literal("{")
        members = _Members()
        comma = True
        while comma:
            yield from buffer.take_spaces()
            key = text_of((yield from take_value(buffer)))
            yield from buffer.take_spaces()
            if key is None or not (yield from buffer.take_literal(":")):
                break
            yield from buffer.take_spaces()
            if not (yield from self._member(key, members)):
                break
            yield from buffer.take_spaces()
            comma = yield from buffer.take_literal(",")
        if not self._open.begun:
            return False
        closed = yield from buffer.take_literal("}")
        buffer.drop()
        self._open.end(closed=closed)
        return True

    def _member(self, key: str, members: "_Members") -> Steps[bool]:
        """Read a member of a call; False if the object is not a call, or ends."""
        if self._family.notation == "keyed" and not self._open.begun:
            self._open.begin(key)
            yield from self._reader.json()
            return True
        if key in _NAMES and not members.name:
            return (yield from self._named(members))
        if key in _ARGUMENTS and members.name and not self._open.arguments:
            if not self._open.begun and (yield from self._buffer.peek()) != "{":
                return False
            if not self._open.begun:
                self._open.begin(members.name)
            yield from self._reader.json()
            return True
        value = yield from take_value(self._buffer)
        if key in _ARGUMENTS and value is not None and value.startswith("{"):
            members.arguments = value
        return value is not None

    def _named(self, members: "_Members") -> Steps[bool]:
        """Read the name of a call, which begins the call unless any JSON could have it."""
        members.name = name = text_of((yield from take_value(self._buffer))) or ""
        yield from self._buffer.take_spaces()
        if not name or (yield from self._buffer.peek()) not in ("", ",", "}"):
            return False
        if members.arguments or not self._family.is_whole or name in (self._functions or ()):
            self._open.begin(name)
            self._open.write(members.arguments)
        return True
