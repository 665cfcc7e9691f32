"""The end of a JSON object in a text."""

import pytest

from car_engine.output.json_object import ValueScanner
from car_protocol.limits import MAX_DEPTH
from tests.engine.output.pieces import every


def scanned(text: str, length: int) -> str | None:
    """Return what belongs to the object that a text begins with; None where it does not end."""
    scanner = ValueScanner()
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
