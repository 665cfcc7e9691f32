"""Write the blocking client from the asynchronous one: `python -m tools.blocking_client`."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "client" / "car_client"
# What the two clients say or do differently, by the file that is written and the file that it is written from.
FILES: dict[tuple[str, str], dict[str, str]] = {
    ("client.py", "async_client.py"): {
        '"""The client for asyncio."""\n': (
            '"""The client for code without an event loop: `make docs` writes it from the asynchronous one."""\n'
        ),
        "kept in the background from the first call on, for one event loop.\n\n"
        "    The client may be made before there is a daemon, and finds it again after a restart.\n": (
            "made at the first call and again after a loss. Use it from one thread at a time.\n"
        ),
        "`async with` or the first call connects": "the first call connects",
        "        self._reconnector.start()\n": "",
        " for good; calls in flight or in a pause raise DaemonUnavailable and are cancelled.": (
            "; the next call makes another."
        ),
        "cancelling the task cancels the request": "an interrupt cancels the request",
        "cancelling or a timeout ends": "an interrupt or a timeout ends",
        "an asynchronous iterator": "an iterator",
        # The blocking watch waits for a descriptor and needs no pause.
        "AsyncStatusWatch(\n"
        "            lambda: self._connected(NEVER), self._request, interval_s, self._timeout, "
        "self._reconnector.pause\n        )": (
            "StatusWatch(lambda: self._connected(NEVER), self._request, interval_s, self._timeout)"
        ),
    },
    ("stream.py", "async_stream.py"): {
        '"""A streamed answer, for asyncio."""\n\nimport asyncio\nimport contextlib\n': (
            '"""A streamed answer, for blocking code: `make docs` writes it from the asynchronous one."""\n\n'
        ),
        "AsyncIterator, Awaitable, Callable": "Callable, Iterator",
        "import AsyncReply, Interrupted, Interruptible, Pause\n": "import AsyncReply, Pause\n",
        # Nothing runs beside a blocking step that could close the stream meanwhile.
        "        self._loop: asyncio.AbstractEventLoop | None = None\n": "",
        "        self._loop = asyncio.get_running_loop()\n": "",
        "self._waits = Interruptible()  # for a connection and in pauses; `aclose` ends them": "self._over = False",
        "        except Interrupted:\n            raise StopAsyncIteration from None\n": "",
        "        except Interrupted:\n            pass\n": "",
        ", also for a task that waits for the next chunk": "",
        """        # A `break` drops the iterator without a call, and the collector may run in any thread.
        if self._reply is not None and self._loop is not None and not self._waits.over:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._reply.cancel)
""": """        if not self._over:
            self.close()
""",
    },
}
# The same things by their other names.
_NAMES = {
    r"\(await (self\._request\(.*\))\)\.": r"\1.",
    r"\b(async|await) ": "",
    r"\b(__)?a(next__|enter__|exit__|close\b)": r"\1\2",
    r"\basyncio\b": "time",
    r"\basync_(stream|watch)\b": r"\1",
    r"\basync_connection\b": "blocking_connection",
    r"\bAsync(Client|Stream|StatusWatch|Iterator)\b": r"\1",
    r"\bAsync(Connection|Reply|Reconnector)\b": r"Blocking\1",
    r"\bStopAsyncIteration\b": "StopIteration",
    r"\bAwaitable\[(\w+)\]": r"\1",
    r"\bself\._waits\.run\((.*)\)": r"\1",
    r"\bself\._waits\.over\b": "self._over",
    r"\bself\._waits\.end\(\)": "self._over = True",
}
_IMPORTS = re.compile(r"(?:^from car_client.*\n)+", re.MULTILINE)


def blocking(source: str, own: dict[str, str]) -> str:
    """Return the blocking form of an asynchronous source; raises ValueError if a text with an own form is gone."""
    for text, form in own.items():
        if text not in source:
            raise ValueError(f"the source lacks {text!r}: correct the table of tools/blocking_client.py")
        source = source.replace(text, form)
    for name, other in _NAMES.items():
        source = re.sub(name, other, source)
    return _IMPORTS.sub(lambda found: "".join(sorted(found[0].splitlines(keepends=True), key=_module)), source)


def _module(line: str) -> str:
    return line.split()[1]


if __name__ == "__main__":
    for (target, source), own in FILES.items():
        text = blocking((FOLDER / source).read_text(encoding="utf-8"), own)
        (FOLDER / target).write_text(text, encoding="utf-8")
