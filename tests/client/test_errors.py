"""The error tree and its table."""

import pickle
from typing import Any

import pytest

from car_client.carctl.failure import explain
from car_client.errors import (
    BY_REASON,
    CardError,
    ContextExceeded,
    DaemonUnavailable,
    InvalidParams,
    RequestError,
    from_object,
)
from car_protocol.errors import REASONS, RpcError

# Defects of a client or of the daemon, which need no class to catch.
PLAIN = {"parse_error", "invalid_request", "method_not_found", "internal_error"}


def test_every_reason_has_a_class_or_is_meant_to_have_none() -> None:
    assert set(BY_REASON) | PLAIN == set(REASONS)
    assert not set(BY_REASON) & PLAIN


def test_no_two_reasons_share_a_class() -> None:
    assert len(set(BY_REASON.values())) == len(BY_REASON)


@pytest.mark.parametrize("reason", REASONS)
def test_an_error_carries_what_the_daemon_said(reason: str) -> None:
    error = from_object(RpcError(reason, started=True, retry_after_ms=5).as_object())
    assert type(error) is BY_REASON.get(reason, RequestError)
    assert isinstance(error, CardError)
    assert (error.reason, error.code, error.started) == (reason, REASONS[reason].code, True)
    assert (error.retryable, error.retry_after_ms) == (REASONS[reason].retryable, 5)
    assert REASONS[reason].message in str(error)


def test_invalid_params_names_the_member() -> None:
    error = from_object(RpcError("invalid_params", param="top_k").as_object())
    assert isinstance(error, InvalidParams)
    assert error.param == "top_k"
    assert str(error).startswith("top_k: ")


def test_a_context_that_is_exceeded_names_the_question_of_a_decision() -> None:
    asked, plain = RpcError("context_exceeded", param="questions[2]"), RpcError("context_exceeded")
    errors = [from_object(each.as_object()) for each in (asked, plain)]
    assert [each.param for each in errors if isinstance(each, ContextExceeded)] == ["questions[2]", ""]


def test_a_model_that_cannot_says_what_it_lacks() -> None:
    error = from_object(RpcError("model_unavailable", lacks="chat_template").as_object())
    assert str(error) == f"{REASONS['model_unavailable'].message}; lacks chat_template"
    assert explain(error).startswith(f"model_unavailable: {error}; ")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "grammar: a member of params is missing, unknown, ill-typed or out of range"),
        ({"why": "a rule is not defined", "line": 3}, "grammar: a rule is not defined (line 3)"),
        ({"why": "it became too complex"}, "grammar: it became too complex"),
    ],
)
def test_invalid_params_says_why_where_the_daemon_does(data: dict[str, Any], text: str) -> None:
    error = from_object(RpcError("invalid_params", param="grammar", **data).as_object())
    assert str(error) == text
    assert explain(error) == f"invalid_params: {text}"


@pytest.mark.parametrize(
    "error", [from_object(RpcError("invalid_params", param="seed").as_object()), DaemonUnavailable("gone")]
)
def test_errors_cross_process_borders(error: CardError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
