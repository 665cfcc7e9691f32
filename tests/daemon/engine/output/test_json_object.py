"""Where a JSON object in a text ends, and which call it is."""

import pytest

from car_daemon.engine.output.json_object import MAX_DEPTH, ObjectScanner, read_arguments, read_call
from car_protocol.conversation import FunctionCall
from tests.daemon.engine.output.pieces import every


def scanned(text: str, length: int) -> str | None:
    """Return what belongs to the object that a text begins with; None where it does not end."""
    scanner = ObjectScanner()
    taken = "{"
    for piece in every(text.removeprefix("{"), length):
        taken += piece[: scanner.scan(piece, 0)]
    return taken if scanner.ended and not scanner.failed else None


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"a": 1}',
        '{"a": {"b": [1, -2.5e+3, true, false, null]}}',
        '{"a": "}"}',
        r'{"a": "\"}"}',
        r'{"a": "\\"}',
        r'{"a": "\u007d"}',
        '{"é": "€😀"}',
        '{\n\t"a":\r\n []}',
        '{"a": "</tool_call>"}',
    ],
)
@pytest.mark.parametrize("length", [1, 2, 100])
def test_an_object_ends_at_its_own_brace(text: str, length: int) -> None:
    assert scanned(text + '} {"x', length) == text


@pytest.mark.parametrize(
    "text", ["{", '{"a', '{"a"', r'{"a\"}', "{]", "{[}]", "{b}", '{"a": 1<}', '{"a": "\n"}', "{'a': 1}", "{“a”: 1}"]
)
@pytest.mark.parametrize("length", [1, 100])
def test_what_cannot_be_json_has_no_end(text: str, length: int) -> None:
    assert scanned(text, length) is None


def test_nesting_is_bounded() -> None:
    deepest = '{"a":' * (MAX_DEPTH - 1) + "{}" + "}" * (MAX_DEPTH - 1)
    assert scanned(deepest, 7) == deepest
    assert scanned('{"a":' + deepest + "}", 7) is None


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('{"name": "f", "arguments": {"a" : 1}}', ("f", '{"a" : 1}')),
        ('{"name": "f", "parameters": {}}', ("f", "{}")),
        ('{"parameters":  { "b": "}" } , "type": "function", "name": "f"}', ("f", '{ "b": "}" }')),
        (r'{"name": "\u00e9 x", "arguments": {"a": "\u00e9é"}}', ("é x", r'{"a": "\u00e9é"}')),
        ('{"name": "f", "arguments": {"n": ' + "9" * 5000 + "}}", ("f", '{"n": ' + "9" * 5000 + "}")),
    ],
)
def test_a_call_keeps_its_arguments_as_written(text: str, call: tuple[str, str]) -> None:
    assert read_call(text) == FunctionCall(*call)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"name": "f"}',
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"name": "f", "arguments": []}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": null}',
        '{"name": "f", "arguments": {"a": 01}}',
        '{"name": "f", "arguments": {"a" 1}}',
        '{"name": "f", "arguments": {"a": 1,}}',
        '{"name": "f", "arguments": {"a": tru}}',
        r'{"name": "f", "arguments": {"a": "\x"}}',
        r'{"name": "f", "arguments": {"a": "\ud800"}}',
        '{"name" "f", "arguments": {}}',
    ],
)
def test_an_object_without_a_name_or_proper_arguments_is_no_call(text: str) -> None:
    assert read_call(text) is None


def test_arguments_alone_have_to_be_json() -> None:
    assert read_arguments("f", '{"a": [1]}') == FunctionCall("f", '{"a": [1]}')
    assert read_arguments("f", '{"a": [1,]}') is None
