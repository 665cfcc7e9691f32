"""Tools whose form only their vendor's models know: no request describes it.

Programs offer such tools by themselves, also to other servers: they are left out, and the answer's `card` says so. So
are the steps of a conversation that a vendor's server took with them.
"""

import re
from collections.abc import Iterable

from car_http.problems import Problem, bad

# Of OpenAI, Anthropic, xAI, Google, Moonshot and Mistral together. The vendors add dates and forms to them, and their
# steps have the same names: `web_search_20250305`, `mcp_toolset`, `web_search_call`. Routers put their own name before
# a colon, as no function can: all such tools are theirs, `openrouter:web_search` and `openrouter:datetime` alike.
KINDS = (
    "advisor",
    "apply_patch",
    "bash",
    "browser",
    "builtin_function",
    "code_execution",
    "code_interpreter",
    "collections_search",
    "computer",
    "document_library",
    "file_search",
    "google_maps",
    "google_search",
    "image_generation",
    "live_search",
    "local_shell",
    "mcp",
    "memory",
    "programmatic_tool_calling",
    "retrieval",
    "shell",
    "text_editor",
    "tool_search",
    "url_context",
    "web_extractor",
    "web_fetch",
    "web_search",
    "x_search",
)
_VENDOR_TOOL = re.compile(rf"(?:[\w-]+:)?({'|'.join(KINDS)})(?:_.*)?|([\w-]{{1,32}}:[\w.-]{{1,64}})", re.DOTALL)


def vendor_tool(kind: str | None) -> str | None:
    """Return the vendor's tool that a type, of a tool or of a step, is a form of; None for other types."""
    found = _VENDOR_TOOL.fullmatch(kind or "")
    return found[1] or found[2] if found else None


def each_once(kinds: Iterable[str | None]) -> tuple[str, ...]:
    """Return the tools in their order, each once."""
    return tuple(dict.fromkeys(kind for kind in kinds if kind is not None))


def refuse_vendor_tool(kind: str | None) -> None:
    """Raise Problem for a choice of a vendor's tool."""
    if kind is not None:
        raise vendor_problem([kind])


def vendor_problem(kinds: Iterable[str]) -> Problem:
    """Return the error of a choice that leaves vendors' tools alone."""
    named = ", ".join(f"`{kind}`" for kind in kinds)
    return bad("tool_choice", f"only its vendor's models know {named}: offer a function of your own, and choose it")
