"""The parsing cases of the JSON test suite, where they lie beside the repository."""

from pathlib import Path

import pytest

from car_protocol.envelope import decode_frame
from car_protocol.errors import RpcError

FOLDER = Path(__file__).parents[3] / "shared" / "vectors" / "json"
ABSENT = pytest.mark.skip(reason="no parsing cases beside the repository; test_envelope has cases of its own")


def cases(prefix: str) -> list[object]:
    """Return the files of one kind, or a skipped case where there are none."""
    files = sorted(FOLDER.glob(f"{prefix}_*.json"))
    return [pytest.param(file, id=file.stem) for file in files] or [pytest.param(FOLDER, marks=ABSENT)]


def outcome(file: Path) -> str:
    """Return why a file's content is refused as a frame, or that it is not."""
    try:
        decode_frame(file.read_bytes())
    except RpcError as error:
        return error.reason
    return "accepted"


@pytest.mark.parametrize("file", cases("n"))
def test_what_is_no_json_is_a_parse_error(file: Path) -> None:
    assert outcome(file) == "parse_error"


@pytest.mark.parametrize("file", cases("y"))
def test_json_is_never_a_parse_error(file: Path) -> None:
    assert outcome(file) in ("invalid_request", "accepted")


@pytest.mark.parametrize("file", cases("i"))
def test_what_may_be_either_raises_nothing_but_errors_of_the_table(file: Path) -> None:
    assert outcome(file) in ("parse_error", "invalid_request", "accepted")
