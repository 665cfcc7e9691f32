"""The drop-in for systems without user namespaces, from the unit that needs them."""

import re
from pathlib import Path

_UNIT = Path(__file__).parents[2] / "systemd" / "user" / "card.service"
# Settings that systemd makes for a user in a namespace, and what takes each away.
_TAKEN_AWAY = {"CapabilityBoundingSet": "~"}
_IN_A_NAMESPACE = re.compile(r"^(PrivateUsers|CapabilityBoundingSet|Protect\w+)=", re.MULTILINE)


def drop_in() -> str:
    """Return a drop-in that takes away every such setting of the unit."""
    keys = _IN_A_NAMESPACE.findall(_UNIT.read_text(encoding="utf-8"))
    lines = "\n".join(f"{key}={_TAKEN_AWAY.get(key, 'no')}" for key in keys)
    return f"```ini\n[Service]\n{lines}\n```"


TABLES = {"drop-in": drop_in}
