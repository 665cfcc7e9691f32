"""The page that people look at: its files, as they are sent. It has no build step and takes nothing from elsewhere."""

from functools import cache
from importlib.resources import files

KINDS = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(
        ("page.js", "elements.js", "events.js", "models.js", "now.js", "talk.js", "usage.js"),
        "text/javascript; charset=utf-8",
    ),
}
# Paths of the files that the page takes; they show nothing of the user.
PATHS = {f"/page/{name}": name for name in KINDS if name != "index.html"}
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@cache
def content(name: str) -> bytes:
    """Return a file of the page."""
    return (files(__name__) / name).read_bytes()
