"""A hook of MkDocs: links that leave docs/ become the file's path, because the site has only the pages below docs/."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page's text; `page` is MkDocs' own."""
    return within(markdown, Path(page.file.abs_src_path))


def within(markdown: str, path: Path) -> str:
    """Return the text of the page at `path`, in which only links to pages of the site are links."""

    def shown(found: re.Match[str]) -> str:
        target = (path.parent / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return found[0]
        return f"{found[1]} (`{target.relative_to(ROOT)}`)"

    return _LINK.sub(shown, markdown)
