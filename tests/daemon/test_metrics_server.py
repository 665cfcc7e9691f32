"""Readers of metrics: answered once each, few at a time, and never waited for."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from structlog.testing import capture_logs

from car_daemon.metrics_server import MAX_HEAD_BYTES, MAX_READERS, MetricsServer
from tests.daemon.conftest import Run

ASK = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def page() -> tuple[str, str]:
    return "text/plain", "figures\n"


def broken() -> tuple[str, str]:
    raise ValueError("a defect")


@asynccontextmanager
async def serving(
    path: Path, metrics: Callable[[], tuple[str, str]] = page, patience: float = 5.0
) -> AsyncIterator[MetricsServer]:
    """A server on a socket of its own."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        server = MetricsServer(metrics, patience)
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


def test_a_sender_that_is_too_slow_is_told_and_its_place_is_free(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path / "s", patience=0.05):
            late = await asyncio.gather(*(exchange(tmp_path / "s", ASK[:-1]) for _ in range(MAX_READERS)))
            assert [status(answer) for answer in late] == [408] * MAX_READERS
            assert status(await exchange(tmp_path / "s", ASK)) == 200

    run(check())


def test_more_readers_than_places_wait_until_one_is_free(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path / "s") as server:
            first = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(MAX_READERS)]
            others = [asyncio.create_task(exchange(tmp_path / "s", ASK)) for _ in range(2 * MAX_READERS)]
            for reader, writer in first:
                assert len(server._readers) <= MAX_READERS
                writer.write(ASK)
                assert status(await reader.read()) == 200
                writer.close()
                await writer.wait_closed()
            assert [status(answer) for answer in await asyncio.gather(*others)] == [200] * 2 * MAX_READERS

    run(check())


def test_a_reader_that_never_reads_is_dropped(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        texts = ["x" * 20_000_000] * MAX_READERS
        async with serving(
            tmp_path / "s", lambda: ("text/plain", texts.pop() if texts else "figures\n"), patience=0.05
        ):
            silent = [socket.socket(socket.AF_UNIX) for _ in range(MAX_READERS)]
            for each in silent:
                each.connect(str(tmp_path / "s"))
                each.sendall(ASK)
            assert (await exchange(tmp_path / "s", ASK)).endswith(b"figures\n")
            for each in silent:
                each.close()

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


def test_closing_drops_who_is_being_answered_and_lets_nobody_in(run: Run, tmp_path: Path) -> None:
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
                assert await asyncio.get_running_loop().run_in_executor(None, _hears_nothing, waiting)

    run(check())


def _hears_nothing(waiting: socket.socket) -> bool:
    waiting.settimeout(0.05)
    try:
        return waiting.recv(1) == b"?"
    except TimeoutError:
        return True
