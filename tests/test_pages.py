"""The pages: their links lead to files and headings, the paths and names of the map exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = (ROOT, ROOT / "daemon", ROOT / "daemon" / "car_daemon")
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "benchmarks" / "NOTES.md",
    ROOT / "tests" / "ATTACKS.md",
]
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]+))?\)")
MODULE = re.compile(r"`([a-z_/]+/[a-z_]+\.py)`")
NAMED = re.compile(MODULE.pattern + r": `(\w+)`")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def module(path: str) -> Path:
    """Return the file of a path below the root, beside the daemon's package, or in it."""
    return next((place / path for place in PLACES if (place / path).exists()), ROOT / path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize(
    "name",
    [
        "CONTRIBUTING.md",
        "docs/explanation/architecture.md",
        "docs/howto/debugging.md",
        "docs/explanation/follow-one-token.md",
        "tests/ATTACKS.md",
    ],
)
def test_modules_and_names_on_a_page_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [path for path in MODULE.findall(text) if not module(path).exists()] == []
    missing = [
        (path, word) for path, word in NAMED.findall(text) if word not in module(path).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_our_names_for_the_options_of_other_servers_exist() -> None:
    page = (ROOT / "docs" / "howto" / "coming-from.md").read_text(encoding="utf-8")
    reference = "".join(each.read_text(encoding="utf-8") for each in sorted((ROOT / "docs" / "reference").glob("*.md")))
    here = [row.rpartition(" | ")[2] for row in page.splitlines() if row.startswith("| ")]
    named = {name for text in here for name in re.findall(r"--[a-z-]+|[a-z]+(?:_[a-z]+)+", text)}
    assert len(named) > 10
    assert sorted(name for name in named if not re.search(rf"(?<![\w-]){name}(?![\w-])", reference)) == []
