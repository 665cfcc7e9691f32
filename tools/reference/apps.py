"""The table of the applications that `carctl launch` knows."""

from car_client.carctl.launch.apps import APPS, path_of
from tools.reference.protocol import table


def apps() -> str:
    """Return every application with its file, what its user has to know, and what was tried."""
    rows = []
    for name, app in APPS.items():
        path = path_of(app, {"HOME": "/"})
        file = "none: variables" if path is None else f"`{path.name}`"
        rows.append((f"`{name}`", file, app.care, app.tried or "not tried"))
    return table(("application", "file", "take care", "tried"), rows)


TABLES = {"applications": apps}
