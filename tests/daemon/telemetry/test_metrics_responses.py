"""HTTP responses to the heads of requests for metrics."""

import pytest

from car_daemon.telemetry.metrics_server import refusal, respond


def page() -> tuple[str, str]:
    return "text/x; é", "figures é\n"


def nothing() -> tuple[str, str]:
    raise AssertionError("these requests read no metrics")


@pytest.mark.parametrize(
    "line",
    [
        b"GET /metrics HTTP/1.1",
        b"GET /metrics HTTP/1.0",
        b"GET /metrics?name[]=card_requests HTTP/1.1",
        b"GET http://127.0.0.1:9464/metrics HTTP/1.1",
    ],
)
def test_the_metrics_are_one_whole_response(line: bytes) -> None:
    head, _, body = respond(line + b"\r\nHost: x\r\n\r\n", page).partition(b"\r\n\r\n")
    status, *headers = head.decode().split("\r\n")
    assert status == "HTTP/1.1 200 OK"
    assert headers == ["Content-Type: text/x; é", "Content-Length: 11", "Connection: close"]
    assert body.decode() == "figures é\n"


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET / HTTP/1.1", 404),
        (b"GET /metrics/ HTTP/1.1", 404),
        (b"GET /%6detrics HTTP/1.1", 404),
        (b"POST /other HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"HEAD /metrics HTTP/1.1", 405),
        (b"GET /metrics", 400),
        (b"GET /metrics HTTP/2", 400),
        (b"GET  /metrics HTTP/1.1", 400),
        (b"get /metrics HTTP/1.1", 400),
        (b"GET /metr\xc3\xa9 HTTP/1.1", 400),
        (b"GET http://[/metrics HTTP/1.1", 400),
        (b"GET /metrics HTTP/1.1\n", 400),
        (b'{"jsonrpc":"2.0","id":1,"method":"infer"}', 400),
        (b"", 400),
    ],
)
def test_everything_else_is_refused_without_reading_a_figure(line: bytes, status: int) -> None:
    answer = respond(line + b"\r\n\r\n", nothing)
    assert answer == refusal(status)
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_a_wrong_http_method_gets_the_right_one() -> None:
    assert b"\r\nAllow: GET\r\n" in refusal(405)
    assert b"Allow" not in refusal(404)
