"""docs/protocol.md says what the definitions say."""

import re
from pathlib import Path

import msgspec
import pytest

from car_protocol.answer import Answer
from car_protocol.capacity import Capacity
from car_protocol.errors import REASONS
from car_protocol.infer import InferParams
from car_protocol.limits import Limits
from car_protocol.methods import METHODS
from car_protocol.models import Estimate, ModelDetails, ModelFile

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_the_limits_are_those_of_the_definition() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([0-9,]+) \|$", TEXT, re.MULTILINE)
    assert {name: int(value.replace(",", "")) for name, value in rows} == msgspec.to_builtins(Limits())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_described(method: str) -> None:
    assert f"`{method}`" in TEXT


@pytest.mark.parametrize("kind", [InferParams, Answer, Capacity, ModelDetails, ModelFile, Estimate])
def test_every_member_is_described(kind: type[msgspec.Struct]) -> None:
    described = set(re.findall(r"`([\w$/]+)`", TEXT)) | set(re.findall(r"[{ ]([a-z_]+)[?:,}]", TEXT))
    members = {field.encode_name for field in msgspec.structs.fields(kind)}
    assert members - described <= {"_meta"}


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_is_described(reason: str) -> None:
    assert f"`{reason}`" in TEXT
