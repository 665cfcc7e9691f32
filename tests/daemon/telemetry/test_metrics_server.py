"""Scrapes of the metrics: answered once each, few at a time, and never waited for."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from car_daemon.sockets.peer import Peer
from car_daemon.telemetry.metrics_server import MAX_HEAD_BYTES, MAX_SCRAPES, MAX_SCRAPES_OF_UID, MetricsServer
from tests.daemon.captured_log import capture_logs
from tests.daemon.conftest import Run
from tests.pace import HANG_S

ASK = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
# A timeout that silent peers reach, and that a busy machine does not reach between two pieces of an exchange.
SHORT_S = 0.5


def page() -> tuple[str, str]:
    return "text/plain", "figures\n"


def broken() -> tuple[str, str]:
    raise ValueError("a defect")


class Users:
    """Peers of an endless number of users, or of `uid` alone."""

    def __init__(self, uid: int | None = None) -> None:
        self.uid = uid
        self._next = 1000

    def read(self, _accepted: socket.socket) -> Peer:
        self._next += 1
        return Peer(self._next if self.uid is None else self.uid, 1)


@asynccontextmanager
async def serving(
    path: Path, metrics: Callable[[], tuple[str, str]] = page, timeout_s: float = 5.0, users: Users | None = None
) -> AsyncIterator[MetricsServer]:
    """A server on a socket of its own."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        server = MetricsServer(
            metrics,
            read_peer=(users or Users()).read,
            head_timeout_s=timeout_s,
            response_timeout_s=timeout_s,
        )
        server.listen(listener)
        yield server
        await server.close()


async def exchange(path: Path, *pieces: bytes, end: bool = False) -> bytes:
    """Send pieces, each by itself, and return all that comes until the server closes."""
    reader, writer = await asyncio.open_unix_connection(path)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    if end:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def test_a_reader_is_answered_once_and_the_connection_closes(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path / "s"):
            answer = await exchange(tmp_path / "s", ASK + ASK)
            assert answer.count(b"HTTP/1.1 200 OK") == 1
            assert answer.endswith(b"\r\n\r\nfigures\n")

    run(check())


def test_a_request_may_come_in_pieces(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path / "s"):
            assert status(await exchange(tmp_path / "s", *(bytes([byte]) for byte in ASK))) == 200

    run(check())


def test_a_request_that_ends_too_early_or_never_is_refused(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path / "s"):
            assert status(await exchange(tmp_path / "s", ASK[:-2], end=True)) == 400
            assert status(await exchange(tmp_path / "s", b"GET /" + b"x" * MAX_HEAD_BYTES)) == 400

    run(check())


def test_a_slow_sender_gets_an_error_and_its_slot_is_free(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path / "s", timeout_s=SHORT_S):
            late = await asyncio.gather(*(exchange(tmp_path / "s", ASK[:-1]) for _ in range(MAX_SCRAPES)))
            assert [status(answer) for answer in late] == [408] * MAX_SCRAPES
            assert status(await exchange(tmp_path / "s", ASK)) == 200

    run(check())


def test_more_readers_than_places_wait_until_one_is_free(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path / "s") as server:
            first = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(MAX_SCRAPES)]
            others = [asyncio.create_task(exchange(tmp_path / "s", ASK)) for _ in range(2 * MAX_SCRAPES)]
            for reader, writer in first:
                assert len(server._scrapes) <= MAX_SCRAPES
                writer.write(ASK)
                assert status(await reader.read()) == 200
                writer.close()
                await writer.wait_closed()
            assert [status(answer) for answer in await asyncio.gather(*others)] == [200] * 2 * MAX_SCRAPES

    run(check())


def test_a_reader_that_never_reads_is_dropped(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        texts = ["x" * 20_000_000] * MAX_SCRAPES
        async with serving(
            tmp_path / "s", lambda: ("text/plain", texts.pop() if texts else "figures\n"), timeout_s=SHORT_S
        ):
            silent = [socket.socket(socket.AF_UNIX) for _ in range(MAX_SCRAPES)]
            for each in silent:
                each.connect(str(tmp_path / "s"))
                each.sendall(ASK)
            assert (await exchange(tmp_path / "s", ASK)).endswith(b"figures\n")
            for each in silent:
                each.close()

    run(check())


def test_silent_readers_of_one_user_leave_slots_to_others(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        users = Users(uid=1)
        async with serving(tmp_path / "s", users=users):
            silent = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(60)]
            refused = await asyncio.gather(*(reader.read() for reader, _ in silent[MAX_SCRAPES_OF_UID:]))
            assert {status(answer) for answer in refused} == {503}
            users.uid = 2
            assert status(await exchange(tmp_path / "s", ASK)) == 200
            for _, writer in silent:
                writer.close()

    run(check())


async def over_tcp(listener: socket.socket, host: bytes) -> bytes:
    """Return the response to a request with a Host."""
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET /metrics HTTP/1.1\r\n" + host + b"\r\n")
    answer = await reader.read()
    writer.close()
    return answer


def test_silent_readers_of_a_port_give_way_after_the_timeout_of_a_head(run: Run) -> None:
    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            server = MetricsServer(page, head_timeout_s=SHORT_S)
            server.listen(listener)
            silent = [await asyncio.open_connection(*listener.getsockname()) for _ in range(60)]
            async with asyncio.timeout(HANG_S):
                assert status(await over_tcp(listener, b"Host: localhost\r\n")) == 200
            await server.close()
            for _, writer in silent:
                writer.close()

    run(check())


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (b"Host: localhost\r\n", 200),
        (b"HOST:LOCALHOST:9464\r\n", 200),
        (b"Host: 127.0.0.1:9464\r\n", 200),
        (b"Host: [::1]:9464\r\n", 200),
        (b"Host: Card.Example\r\n", 200),
        (b"Host: evil.example\r\n", 421),
        (b"Host: localhost.evil.example\r\n", 421),
        (b"Host: localhost@evil.example\r\n", 421),
        (b"Host: localhost\r\nHost: evil.example\r\n", 421),
        (b"Host: [evil]\r\n", 421),
        (b"Host: \r\n", 421),
        (b"", 421),
    ],
)
def test_a_port_answers_requests_to_this_machine_alone(run: Run, host: bytes, expected: int) -> None:
    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            server = MetricsServer(page, name="card.example")
            server.listen(listener)
            answer = await over_tcp(listener, host)
            assert status(answer) == expected
            assert (b"figures" in answer) == (expected == 200)
            if expected == 421:
                assert answer.endswith(b"must be localhost, an address or the configured `[metrics] name`\n")
            await server.close()

    run(check())


def test_a_defect_in_the_figures_is_logged_by_its_place_and_answered(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path / "s", metrics=broken):
            with capture_logs() as logs:
                assert status(await exchange(tmp_path / "s", ASK)) == 500
            (event,) = logs
            assert (event["event"], event["error"]) == ("metrics.failed", "ValueError")
            assert "a defect" not in str(event)

    run(check())


def test_closing_drops_open_scrapes_and_accepts_no_more(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path / "s") as server:
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(ASK[:5])
            assert status(await exchange(tmp_path / "s", ASK)) == 200
            await server.close()
            assert await reader.read() == b""
            writer.close()
            with socket.socket(socket.AF_UNIX) as waiting:
                waiting.connect(str(tmp_path / "s"))
                waiting.setblocking(False)
                assert await asyncio.get_running_loop().run_in_executor(None, _receives_nothing, waiting)

    run(check())


def _receives_nothing(waiting: socket.socket) -> bool:
    waiting.settimeout(0.05)
    try:
        return waiting.recv(1) == b"?"
    except TimeoutError:
        return True
