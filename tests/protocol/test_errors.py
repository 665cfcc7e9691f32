"""The table of errors and the limits, as the contract has them."""

import msgspec
import pytest

from car_protocol.errors import REASONS, ErrorObject, RpcError
from car_protocol.limits import Limits

CONTRACT = {
    "parse_error": -32700,
    "invalid_request": -32600,
    "method_not_found": -32601,
    "invalid_params": -32602,
    "internal_error": -32603,
    "cancelled": -32800,
    "overloaded": 1001,
    "quota": 1001,
    "deadline_exceeded": 1002,
    "draining": 1003,
    "model_unavailable": 1004,
    "engine_lost": 1005,
    "context_exceeded": 1006,
    "slow_reader": 1007,
    "limit": 1008,
    "not_permitted": 1009,
}


def test_the_table_is_that_of_the_contract() -> None:
    assert {reason: kind.code for reason, kind in REASONS.items()} == CONTRACT


def test_codes_and_messages_are_unique_but_for_the_code_of_no_room() -> None:
    codes = [kind.code for reason, kind in REASONS.items() if reason != "quota"]
    assert len(set(codes)) == len(codes)
    assert len({kind.message for kind in REASONS.values()}) == len(REASONS)


@pytest.mark.parametrize("reason", REASONS)
def test_an_error_goes_over_the_wire_with_its_fixed_text_and_its_facts(reason: str) -> None:
    error = RpcError(reason, started=True, queued=3).as_object()
    assert msgspec.to_builtins(error) == {
        "code": CONTRACT[reason],
        "message": REASONS[reason].message,
        "data": {"reason": reason, "retryable": REASONS[reason].retryable, "started": True, "queued": 3},
    }


def test_nothing_was_started_unless_it_is_said() -> None:
    data = RpcError("overloaded").as_object().data
    assert isinstance(data, dict)
    assert data["started"] is False


def test_a_reason_outside_the_table_does_not_exist() -> None:
    with pytest.raises(KeyError):
        RpcError("nonsense")


def test_an_error_without_data_leaves_it_out() -> None:
    assert msgspec.json.encode(ErrorObject(1, "a")) == b'{"code":1,"message":"a"}'


def test_the_limits_are_those_of_the_contract() -> None:
    limits = msgspec.to_builtins(Limits())
    assert limits.pop("queue_max_bytes") > limits["max_frame_bytes"]
    assert limits == {
        "max_frame_bytes": 8_388_608,
        "max_depth": 64,
        "max_values": 100_000,
        "max_members": 200_000,
        "max_id_bytes": 128,
        "max_batch": 32,
        "max_connections": 1024,
        "max_connections_per_uid": 600,
        "max_users": 14,
        "max_client_bytes": 268_435_456,
        "user_floor_bytes": 9_437_184,
        "max_in_flight": 64,
        "queue_limit": 64,
        "max_output_bytes": 1_048_576,
        "max_images": 64,
        "max_image_pixels": 64_000_000,
        "max_audio_s": 300,
        "slow_reader_ms": 10_000,
        "frame_timeout_ms": 30_000,
    }
