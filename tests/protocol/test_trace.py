"""`_meta.traceparent` as W3C's trace context defines it."""

import pytest
from msgspec import Raw

from car_protocol.meta import Trace, read_traceparent, trace_of

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
IDS = f"{TRACE}-{PARENT}"


@pytest.mark.parametrize(
    "text",
    [
        f"00-{IDS}-01",
        f"00-{IDS}-00",
        f"00-{IDS}-ff",
        f"01-{IDS}-01",
        f"cc-{IDS}-01-what-the-future-brings",
        f"fe-{IDS}-00-",
    ],
)
def test_the_ids_are_read_in_this_version_and_those_to_come(text: str) -> None:
    assert read_traceparent(text) == Trace(TRACE, PARENT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"ff-{IDS}-01",
        f"00-{IDS}-01-more",
        f"00-{IDS}-01-",
        f"00-{IDS}-01.",
        f"cc-{IDS}-01.more",
        f"00-{IDS}-1",
        f"00-{IDS}",
        f"0-{IDS}-01",
        f"0g-{IDS}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}0-01",
        f"00-{IDS}-01".upper(),
        f" 00-{IDS}-01",
        f"00-{IDS}-01\n",
        f"00-{IDS}-0\u0661",
    ],
)
def test_what_is_invalid_is_no_trace(text: str) -> None:
    assert read_traceparent(text) is None


@pytest.mark.parametrize("value", [b"1", b"null", b"[]", b'["a"]', b"{}", b'"\\ud800"', b'"x"', b"1e999"])
def test_a_value_of_another_kind_is_no_trace(value: bytes) -> None:
    assert trace_of({"traceparent": Raw(value)}) is None


def test_meta_without_one_is_no_trace() -> None:
    assert trace_of({}) is None
    assert trace_of({"traceparent": Raw(f'"00-{IDS}-01"'.encode())}) == Trace(TRACE, PARENT)
