"""The tables of the HTTP endpoints' page, from the door's own table and its errors."""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from msgspec import Struct
from msgspec.structs import fields

from car_http import problems
from car_http.dialects import infill, llama_completion, openai_chat, vendor_tools
from car_http.dialects.anthropic import requests as anthropic
from car_http.dialects.bodies import Own
from car_http.dialects.ollama import requests as ollama
from car_http.dialects.responses import requests as responses
from car_http.endpoints.context import Endpoint
from car_http.endpoints.table import ENDPOINTS
from car_http.problems import STATUSES
from car_http.protocol import REFUSAL
from tools.reference.protocol import table

_PREFIX = "/v1"
# The modules with the names of each dialect.
_DIALECTS: Mapping[str, tuple[ModuleType, ...]] = {
    "OpenAI, llama-server": (openai_chat, responses, llama_completion, infill),
    "Anthropic": (anthropic,),
    "Ollama": (ollama,),
}


def endpoints() -> str:
    """Return every endpoint with the members of its body that are read; a path with and without `/v1` is one row.

    Endpoints that read the same members are one row, and members that an earlier row has are named by it.
    """
    rows: dict[tuple[str, ...], list[str]] = {}
    for path, each in _paths():
        rows.setdefault(_members(each), []).append(f"`{each.method} {path}`")
    known: dict[str, tuple[str, ...]] = {}
    lines = []
    for members, paths in sorted(rows.items(), key=lambda row: not row[0]):
        lines.append((_shown(paths), _said(members, known)))
        known[paths[0]] = members
    return table(("endpoint", "members that are read"), lines)


def statuses() -> str:
    """Return the statuses of errors with their codes."""
    codes = codes_of_statuses()
    lines = [(str(status), ", ".join(sorted(codes[status])), when) for status, when in sorted(STATUSES.items())]
    return table(("status", "`code`", "when"), lines)


def names() -> str:
    """Return the names that members of the request object have in the dialects."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for dialect, modules in _DIALECTS.items():
        for module in modules:
            known: Mapping[str, tuple[str, ...]] = vars(module).get("_NAMES") or module.NAMES
            for member, others in known.items():
                cells = found.setdefault(member, {each: {} for each in _DIALECTS})
                cells[dialect] |= {f"`{other}`": None for other in others if other.rpartition(".")[2] != member}
    rows = [(f"`{member}`", *map(", ".join, cells.values())) for member, cells in found.items() if any(cells.values())]
    return table(("card", *_DIALECTS), rows)


def refused() -> str:
    """Return the members that a request is refused for, each with the first endpoint that has it, and the reason.

    Endpoints whose path may begin with `/v1` come first.
    """
    rows: dict[tuple[str, str], str] = {}
    for path, each in sorted(_paths(), key=lambda named: (not named[0].startswith("["), len(named[0]))):
        body: type[Struct] | None = each.body
        reasons: Mapping[str, str] = vars(sys.modules[body.__module__]).get("_REFUSED", {}) if body else {}
        for member in (field.encode_name for field in fields(body) if field.name in reasons) if body else ():
            rows.setdefault((f"`{member}`", reasons[member]), f"`{path}`")
    return table(("endpoint", "member", "why it is refused, and what to send"), _grouped(rows))


def tools() -> str:
    """Return the tools that only their vendor's models know."""
    return _listed(vendor_tools.KINDS)


def own() -> str:
    """Return the members of the protocol that `card` in a body, and the headers `X-Card-...`, may have."""
    return _listed(field.encode_name for field in fields(Own))


def _grouped(rows: Mapping[tuple[str, str], str]) -> Iterator[tuple[str, str, str]]:
    """Yield rows in which an endpoint stands once, above its members."""
    above = ""
    for (member, why), path in rows.items():
        yield "" if path == above else path, member, why
        above = path


def codes_of_statuses() -> Mapping[int, set[str]]:
    """Return the codes of each status: of the daemon's reasons, and of the problems that the door finds itself."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for row in (*problems.ROWS.values(), *(row for row in vars(problems).values() if isinstance(row, problems.Row))):
        found[row.status].add(f"`{row.code}`")
    for file in Path(problems.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Name(id="Problem"),
                    args=[ast.Constant(value=int() as status), ast.Constant(value=str() as code), *_],
                ):
                    found[status].add(f"`{code}`")
                case ast.Call(
                    func=ast.Name(id="_Refusal") | ast.Attribute(attr="refuse"),
                    args=[ast.Constant(value=int() as status), *_],
                ):
                    found[status].add(f"`{REFUSAL}`")
    return found


def _paths() -> Iterator[tuple[str, Endpoint]]:
    paths = {each.path for each in ENDPOINTS}
    for each in ENDPOINTS:
        if each.path.removeprefix(_PREFIX) in paths and each.path.startswith(_PREFIX):
            yield f"[{_PREFIX}]{each.path.removeprefix(_PREFIX)}".replace(":path", ""), each
        elif _PREFIX + each.path not in paths:
            yield each.path.replace(":path", ""), each


def _shown(paths: list[str]) -> str:
    """Return the paths of a row; the files of the page are one."""
    return ", ".join(dict.fromkeys("`GET /page/...`" if path.startswith("`GET /page/") else path for path in paths))


def _members(endpoint: Endpoint) -> tuple[str, ...]:
    body: type[Struct] | None = endpoint.body
    return tuple(field.encode_name for field in fields(body)) if body else tuple(endpoint.queries)


def _said(members: tuple[str, ...], known: dict[str, tuple[str, ...]]) -> str:
    """Return the members in words: by an earlier endpoint that has most of them, if that is shorter."""
    whole = _listed(members)
    texts = [whole]
    for path, others in known.items():
        lacks = [name for name in others if name not in members]
        more = [name for name in members if name not in others]
        without = f"; without {_listed(lacks)}" if lacks else ""
        texts.append(f"as {path}{without}{f'; with {_listed(more)}' if more else ''}")
    return min(texts, key=len)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


TABLES = {
    "endpoints": endpoints,
    "refused": refused,
    "vendor tools": tools,
    "names": names,
    "own members": own,
    "endpoint errors": statuses,
}
