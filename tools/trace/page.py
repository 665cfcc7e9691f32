"""The page "Follow one token" with its tables: each stands between a marker that names it and one that ends it."""

import re
from pathlib import Path

from tools.trace.measured import Measured
from tools.trace.profile import Profile

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "follow-one-token.md"
_PLACE = re.compile(r"<!-- table: ([a-z]+) -->\n.*?<!-- end -->", re.DOTALL)
_NAMES = {
    "stream": "`infer_stream`, an answer of three tokens",
    "token": "one token of it, from the engine's frame to the client's socket",
    "capacity": "`inference/capacity`",
    "step": "the engine: a decode step of three streams",
}


def renewed(text: str, measured: Measured) -> str:
    """Return the page with its tables as measured now."""
    tables = {"figures": _figures(measured), "token": _visits(measured.token)}
    return _PLACE.sub(lambda found: f"<!-- table: {found[1]} -->\n\n{tables[found[1]]}\n\n<!-- end -->", text)


def _figures(measured: Measured) -> str:
    rows = [
        f"| {_NAMES[name]} | {profile.calls} | {profile.changes} | {len(profile.files)} |"
        for name, profile in measured._asdict().items()
    ]
    return "\n".join(["| what | Python calls | changes of file | files |", "|---|---|---|---|", *rows])


def _visits(profile: Profile) -> str:
    rows = [
        f"| {number} | `{visit.file}` | {', '.join(f'`{name}`' for name in visit.functions)} |"
        for number, visit in enumerate(profile.visits, 1)
    ]
    return "\n".join(["| | file | functions, in order |", "|---|---|---|", *rows])
