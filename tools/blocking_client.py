"""Write the blocking client, client.py, from the asynchronous one: `python -m tools.blocking_client`."""

import re
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "client" / "car_client"
SOURCE, TARGET = _FOLDER / "async_client.py", _FOLDER / "client.py"
# What the two clients say or do differently.
_OWN = {
    '"""The client for asyncio."""\n': (
        '"""The client for code without an event loop: `make docs` writes it from async_client.py."""\n'
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
    "            lambda: self._connected(NEVER), self._request, interval_s, self._timeout, self._reconnector.pause\n"
    "        )": "StatusWatch(lambda: self._connected(NEVER), self._request, interval_s, self._timeout)",
}
# The same things by their other names.
_NAMES = {
    r"\(await (self\._request\(.*\))\)\.": r"\1.",
    r"\b(async|await) ": "",
    r"\b(__)?a(enter__|exit__|close\b)": r"\1\2",
    r"\basyncio\b": "time",
    r"\basync_(stream|watch)\b": r"\1",
    r"\basync_(connection|reconnector)\b": r"blocking_\1",
    r"\bAsync(Client|Stream|StatusWatch)\b": r"\1",
    r"\bAsync(Connection|Reply|Reconnector)\b": r"Blocking\1",
}
_IMPORTS = re.compile(r"(?:^from car_client.*\n)+", re.MULTILINE)


def blocking(source: str) -> str:
    """Return the blocking client for the source of the asynchronous one; raises ValueError if a text of it is gone."""
    for asynchronous, own in _OWN.items():
        if asynchronous not in source:
            raise ValueError(f"async_client.py lacks {asynchronous!r}: correct the table of tools/blocking_client.py")
        source = source.replace(asynchronous, own)
    for name, other in _NAMES.items():
        source = re.sub(name, other, source)
    return _IMPORTS.sub(lambda found: "".join(sorted(found[0].splitlines(keepends=True), key=_module)), source)


def _module(line: str) -> str:
    return line.split()[1]


if __name__ == "__main__":
    TARGET.write_text(blocking(SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
