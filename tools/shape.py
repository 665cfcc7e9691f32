"""Prints figures about the code's shape: a mirror, no gate. Never cut a noun to please a number.

`python -m tools.shape`: functions by length, private functions that are used once, large classes, long constructors,
full folders.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = {"daemon": ROOT / "daemon" / "car_daemon", "client": ROOT / "client" / "car_client"}
LARGE_CLASS = 12
LONG_CONSTRUCTOR = 8
FULL_FOLDER = 16
Function = ast.FunctionDef | ast.AsyncFunctionDef
_PRIVATE = re.compile(r"_[a-z]\w*")


class Shape(NamedTuple):
    """The figures of one tree; lengths in lines."""

    functions: int
    median_length: float
    p90_length: float
    used_once: list[str]
    classes: int
    large_classes: list[str]
    long_constructors: list[str]
    full_folders: list[str]


def shape_of(folder: Path) -> Shape:
    """Read a tree's files."""
    files = sorted(folder.rglob("*.py"))
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    named = [(file.relative_to(folder).as_posix(), node) for file, tree in trees.items() for node in ast.walk(tree)]
    functions = [(file, node) for file, node in named if isinstance(node, Function)]
    lengths = [_length(node) for _, node in functions]
    classes = [(file, node) for file, node in named if isinstance(node, ast.ClassDef)]
    counts = Counter(file.parent for file in files)
    return Shape(
        functions=len(functions),
        median_length=median(lengths),
        p90_length=quantiles(lengths, n=10)[-1],
        used_once=[name for file, tree in trees.items() for name in _used_once(file.relative_to(folder), tree)],
        classes=len(classes),
        large_classes=[f"{file}:{node.name}" for file, node in classes if len(list(_methods(node))) > LARGE_CLASS],
        long_constructors=[
            f"{file}:{node.name}"
            for file, node in classes
            for method in _methods(node)
            if method.name == "__init__" and _arguments(method) > LONG_CONSTRUCTOR
        ],
        full_folders=[str(each.relative_to(folder)) for each, count in counts.items() if count > FULL_FOLDER],
    )


def _length(function: Function) -> int:
    """Return its lines without its decorators and its docstring."""
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
    return 1 + (function.end_lineno or 0) - first.lineno + 1


def _methods(node: ast.ClassDef) -> Iterator[Function]:
    return (each for each in node.body if isinstance(each, Function))


def _arguments(function: Function) -> int:
    arguments = function.args
    return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) - 1


def _used_once(file: Path, tree: ast.Module) -> Iterator[str]:
    """Yield the private functions whose names occur once beside their definition; a use elsewhere would be an error."""
    text = ast.unparse(tree)
    for node in ast.walk(tree):
        if isinstance(node, Function) and _PRIVATE.fullmatch(node.name) and not node.decorator_list:
            yield from [f"{file.as_posix()}:{node.name}"] * (len(re.findall(rf"\b{node.name}\b", text)) == 2)


def main() -> None:
    """Print the figures of each tree, and the names behind the short lists."""
    for name, folder in FOLDERS.items():
        shape = shape_of(folder)
        share = len(shape.used_once) / shape.functions
        print(f"{name}: {shape.functions} functions, median {shape.median_length:g} lines, p90 {shape.p90_length:.0f}")
        print(f"  private functions used once: {len(shape.used_once)} ({share:.0%})")
        print(f"  classes with more than {LARGE_CLASS} methods: {len(shape.large_classes)} of {shape.classes}")
        for each in shape.large_classes:
            print(f"    {each}")
        print(f"  constructors with more than {LONG_CONSTRUCTOR} arguments: {len(shape.long_constructors)}")
        for each in shape.long_constructors:
            print(f"    {each}")
        print(f"  folders with more than {FULL_FOLDER} files: {', '.join(shape.full_folders) or 'none'}")


if __name__ == "__main__":
    main()
