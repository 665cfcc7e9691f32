"""The pages of the reference say what the definitions say."""

import re

import msgspec
import pytest

from car_protocol.answer import Answer
from car_protocol.capacity import Capacity
from car_protocol.errors import REASONS
from car_protocol.infer import InferParams
from car_protocol.limits import Limits
from car_protocol.methods import METHODS
from car_protocol.models import ModelDetails
from car_protocol.status import Status
from tools.reference.pages import PAGES, filled, tables_in, tables_of, text_of
from tools.reference.protocol import request
from tools.reference.words import in_words

TEXT = text_of("reference/protocol.md")
# Their tables are made from the door, which needs the extra `http`.
OF_THE_DOOR = ("reference/command-lines.md", "reference/http-endpoints.md")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_its_tables_as_the_definitions_make_them(page: str) -> None:
    if page in OF_THE_DOOR:
        pytest.importorskip("uvicorn")
    assert sorted(tables_in(text_of(page))) == sorted(tables_of(page))
    assert filled(page) == text_of(page), "the definitions changed: `make docs` writes the tables again"


def test_the_limits_are_those_of_the_definition() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([0-9,]+) \| [^|]+ \|$", TEXT, re.MULTILINE)
    assert {name: int(value.replace(",", "")) for name, value in rows} == msgspec.to_builtins(Limits())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_described(method: str) -> None:
    assert f"| `{method}` |" in TEXT


@pytest.mark.parametrize("kind", [InferParams, Answer, Capacity, Status, ModelDetails])
def test_every_member_is_described(kind: type[msgspec.Struct]) -> None:
    members = {field.encode_name for field in msgspec.structs.fields(kind)} - {"_meta"}
    named = " ".join(re.findall(r"^\| (`\w+`[^|]*) \|", TEXT, re.MULTILINE))
    assert members <= set(re.findall(r"`(\w+)`", named))


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_is_described(reason: str) -> None:
    assert f"| `{reason}` |" in TEXT


# How the tables are made.


def row(table: str, member: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if line.startswith(f"| `{member}`"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("member", "words", "default"),
    [
        ("temperature", "0 to 5", ""),
        ("min_p", "0 to 1", "`0.05`"),
        ("top_k", "0 to 100,000", "`40`"),
        ("logit_bias", "{text: -100 to 100}, up to 1,024", "`{}`"),
        ("messages", "[object], 1 to 512", ""),
        ("messages[].role", "text", "required"),
        (".parameters", "object", "`{}`"),
        ("priority", "`latency_critical`, `throughput`", '`"latency_critical"`'),
        ("prompt", "text", ""),
    ],
)
def test_a_row_says_what_may_be_sent_and_what_holds_without_it(member: str, words: str, default: str) -> None:
    assert row(request(), member)[1:3] == [words, default]


def test_the_question_comes_before_how_tokens_are_chosen() -> None:
    table = request()
    assert table.index("| `prompt`") < table.index("| `stop`") < table.index("| `temperature`")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "maxLength": 9}, "text of up to 9"),
        ({"type": "string", "minLength": 1, "maxLength": 256}, "text of 1 to 256"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, "[integer], not empty"),
        ({"anyOf": [{"type": "null"}, {"type": "number"}]}, "number or null"),
        ({"enum": [1, 2]}, "`1`, `2`"),
        ({"$ref": "#/components/schemas/Xtc"}, "object"),
        ({"$ref": "#/components/schemas/Limits"}, "[the limits](#the-limits)"),
        ({}, "anything"),
    ],
)
def test_a_schema_in_words(schema: dict[str, object], words: str) -> None:
    assert in_words(schema) == words
