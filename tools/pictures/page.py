"""Pictures of the door's page, by Debian's Chromium: on a wide screen, and on a telephone in the dark."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from benchmarks.targets.process import free_port

_BIN = Path(sys.executable).parent
# Some readings of the tokens a second are there by then.
_SETTLED_MS = 4000
_SCREENS: tuple[tuple[str, int, int, Literal["light", "dark"]], ...] = (
    ("page", 1000, 700, "light"),
    ("page-on-a-telephone", 360, 720, "dark"),
)


def draw(folder: Path, socket: str, state: str) -> None:
    """Write PNG files of the page while the daemon at a socket works; the door keeps its key below `state`."""
    from playwright.sync_api import sync_playwright

    with _door(socket, state) as (url, key), sync_playwright() as playwright:
        # The sandbox of Chromium needs a user that is not root.
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, width, height, scheme in _SCREENS:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.goto(f"{url}/#key={key}")
            page.wait_for_selector("#now:visible")
            page.wait_for_selector("#running td")
            page.wait_for_timeout(_SETTLED_MS)
            page.screenshot(path=folder / f"{name}.png")
        browser.close()


@contextmanager
def _door(socket: str, state: str) -> Iterator[tuple[str, str]]:
    """Run a door on a free port; yields its address and its key."""
    port = free_port()
    environment = {"PATH": str(_BIN), "XDG_CONFIG_HOME": state, "XDG_RUNTIME_DIR": state}
    command: list[str | Path] = [_BIN / "card-http", "--socket", socket, "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as door:
        assert door.stderr is not None
        assert "listening on" in (line := door.stderr.readline()), line
        try:
            keys = (Path(state) / "car" / "http-keys").read_text(encoding="utf-8")
            yield f"http://127.0.0.1:{port}", keys.split()[-1]
        finally:
            door.terminate()
