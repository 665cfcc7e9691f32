"""Prints figures about the code's mass, words and seams: a mirror, no gate. Never cut a noun to please a number.

`python -m tools.shape [--names]`: a figure a line over daemon, client and protocol, and with `--names` what it counted.
`make trace` prints the figures of one token.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PRODUCT = ("protocol", "client", "daemon")
WORKSHOP = ("tools", "benchmarks")
DECIDERS = (ROOT / "daemon/car_engine/batching", ROOT / "daemon/car_daemon/scheduler")
# A package of its own that no rule about steps covers.
NOT_DECIDING = ROOT / "daemon/car_engine/batching/reuse"
MANY_METHODS = 25
# Numbers that every loop and pair has.
PLAIN = (0, 1, 2)
CONDITION = re.compile(r"\bwhere\b", re.IGNORECASE)
RIDDLE = re.compile(r"\b(?:ones|those|of (?:which|whom|them))\b", re.IGNORECASE)
SENTENCE = re.compile(r"(?<=[.:;!?])\s+")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function


class Source(NamedTuple):
    """One file, read and parsed."""

    file: Path
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        """The path from the repository's root."""
        return self.file.relative_to(ROOT).as_posix()

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        """Every class, those inside others too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))


class Figure(NamedTuple):
    """One line of the table, with the names behind its last number."""

    what: str
    numbers: tuple[int, ...]
    names: list[str] = []  # noqa: RUF012  # a named tuple's default, which nothing changes


def sources(*folders: str) -> list[Source]:
    """Read all Python files of folders of the repository."""
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    texts = [(file, file.read_text(encoding="utf-8")) for file in files]
    return [Source(file, text, ast.parse(text)) for file, text in texts]


def figures() -> Iterator[Figure]:
    """Count everything."""
    product = sources(*PRODUCT)
    yield Figure("AST nodes", (sum(1 for each in product for _ in ast.walk(each.tree)),))
    lines = _lines(product)
    yield Figure("lines; with tools and benchmarks", (lines, lines + _lines(sources(*WORKSHOP))))
    lonely = _with_one_importer(product)
    yield Figure("files; modules with one importer", (len(product), len(lonely)), lonely)
    longest = max(product, key=lambda each: each.text.count("\n"))
    large = [f"{each.place}: {node.name}" for each in product for node in each.classes if _methods(node) > MANY_METHODS]
    yield Figure(
        f"longest file; classes with more than {MANY_METHODS} methods",
        (longest.text.count("\n"), len(large)),
        [longest.place, *large],
    )
    several = _several_meanings(product)
    yield Figure("public class names with several meanings", (len(several),), several)
    protocols, single = _protocols(product)
    yield Figure("Protocols; with at most one class that has their members", (protocols, len(single)), single)
    deciding = _deciding(product)
    yield Figure("numeric literals that decide, in batching and scheduler", (len(deciding),), deciding)
    texts = list(_sentences(product))
    where = [f"{place}: {text}" for place, text in texts if CONDITION.search(text)]
    riddles = [f"{place}: {text}" for place, text in texts if RIDDLE.search(text)]
    yield Figure(
        "docstring sentences with `where` for `if`; with `ones`, `those`, `of which`",
        (len(where), len(riddles)),
        where + riddles,
    )
    yield Figure("lines of tests", (_lines(sources("tests")),))


def _lines(files: Iterable[Source]) -> int:
    return sum(each.text.count("\n") for each in files)


def _methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, Function) for each in node.body)


def _with_one_importer(files: list[Source]) -> list[str]:
    """Return the modules that exactly one other module imports; packages' `__init__` do not count."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for each in files:
        for node in ast.walk(each.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    importers[name].add(each.place)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    importers[alias.name].add(each.place)
    names = {".".join(Path(each.place).with_suffix("").parts[1:]): each.place for each in files}
    return [place for name, place in names.items() if len(importers[name]) == 1 and not name.endswith("__init__")]


def _several_meanings(files: list[Source]) -> list[str]:
    places: defaultdict[str, set[str]] = defaultdict(set)
    for each in files:
        for node in each.classes:
            if not node.name.startswith("_"):
                places[node.name].add(each.place)
    return [f"{name}: {', '.join(sorted(found))}" for name, found in sorted(places.items()) if len(found) > 1]


def _protocols(files: list[Source]) -> tuple[int, list[str]]:
    """Return the number of Protocols, and each that at most one other class fulfils by the names of its members."""
    members = {f"{each.place}: {node.name}": (node, _members(node)) for each in files for node in each.classes}
    protocols = {name: own for name, (node, own) in members.items() if _is_protocol(node)}
    concrete = [own for name, (_, own) in members.items() if name not in protocols]
    single = [name for name, own in protocols.items() if sum(own <= other for other in concrete) <= 1]
    return len(protocols), single


def _is_protocol(node: ast.ClassDef) -> bool:
    """Return whether a class is a Protocol of typing's; asyncio's of that name are classes."""
    return any(re.match(r"Protocol\b", ast.unparse(base)) for base in node.bases)


def _members(node: ast.ClassDef) -> frozenset[str]:
    """Return what a class defines: methods, names in its body, and what its constructor sets."""
    names = {each.name for each in node.body if isinstance(each, Function)}
    names |= {
        name.id
        for each in node.body
        if isinstance(each, ast.Assign | ast.AnnAssign)
        for name in ast.walk(each)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self":
            names.add(each.attr)
    return frozenset(names)


def _deciding(files: list[Source]) -> list[str]:
    """Return the numbers in what decides: constants, defaults and literals in expressions, but 0, 1 and 2."""
    inside = [each for each in files if any(each.file.is_relative_to(folder) for folder in DECIDERS)]
    return [
        f"{each.place}:{node.lineno}: {node.value!r}"
        for each in inside
        if not each.file.is_relative_to(NOT_DECIDING)
        for node in ast.walk(each.tree)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value not in PLAIN
    ]


def _sentences(files: list[Source]) -> Iterator[tuple[str, str]]:
    for each in files:
        for node in ast.walk(each.tree):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)):
                place = f"{each.place}:{getattr(node, 'lineno', 1)}"
                yield from ((place, " ".join(sentence.split())) for sentence in SENTENCE.split(text))


def main() -> None:
    """Print the figures; with `--names` the names behind them."""
    for figure in figures():
        print(f"{figure.what}: {'; '.join(f'{number:,}' for number in figure.numbers)}")
        if "--names" in sys.argv[1:]:
            for name, count in Counter(figure.names).items():
                print(f"    {name}" + (f" ({count} times)" if count > 1 else ""))


if __name__ == "__main__":
    main()
