"""Unhandled exceptions are logged by type and place, never by their text."""

import asyncio
import gc
import sys

import pytest

from car_base.host import defects
from car_base.host.event_log import place_of
from tests.daemon.captured_log import capture_logs

SECRET = "canary-5f1d"  # stands for a prompt


def fail() -> None:
    raise ValueError(SECRET)


async def fail_later() -> None:
    fail()


def test_the_unread_exception_of_a_task_is_logged_without_its_text(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(defects.loop_failed)
        task = loop.create_task(fail_later())
        await asyncio.wait([task])
        del task
        gc.collect()
        loop.call_soon(fail)
        await asyncio.sleep(0)

    with capture_logs() as logs:
        asyncio.run(scenario())
    line = fail.__code__.co_firstlineno + 1
    entry = {"event": "loop.failed", "error": "ValueError", "place": f"{__name__}:{line}", "log_level": "error"}
    assert logs == [entry, entry]
    assert SECRET not in "".join(capfd.readouterr())


def test_what_the_loop_reports_without_an_exception_is_logged_without_its_text() -> None:
    loop = asyncio.new_event_loop()
    with capture_logs() as logs:
        defects.loop_failed(loop, {"message": SECRET, "transport": SECRET})
    loop.close()
    assert logs == [{"event": "loop.failed", "log_level": "error"}]


class Careless:
    """Fails when it is collected."""

    def __del__(self) -> None:
        fail()


def test_the_interpreter_prints_no_exception_either(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    defects.install()
    with capture_logs() as logs:
        Careless()
        gc.collect()
        try:
            fail()
        except ValueError as error:
            sys.excepthook(type(error), error, error.__traceback__)
    assert [entry["event"] for entry in logs] == ["cleanup.failed", "daemon.failed"]
    assert SECRET not in repr(logs) + "".join(capfd.readouterr())


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    assert place_of(ValueError(SECRET)) == "unknown"
