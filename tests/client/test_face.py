"""The client as its users see it: the pair of clients, the docstrings of all methods, the texts of all members."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

import car_client
from car_client import AsyncClient, AsyncStatusWatch, AsyncStream, Client, InferOptions, StatusWatch, Stream, options
from tools.blocking_client import FILES, FOLDER, blocking
from tools.reference.client_texts import KINDS, OPTIONS, rewritten, text_of

PAIRS = [(Client, AsyncClient), (Stream, AsyncStream), (StatusWatch, AsyncStatusWatch)]
# An iterator of statuses is read with other descriptors in a loop without asyncio only.
BLOCKING_ALONE = {"take", "wait"}
# These end things here and raise nothing, or raise no other errors than every call.
RAISES_NO_MORE = {"close", "aclose", "cancel", "wait", "models", "status", "metrics", "why", "call"}
SECTION = re.compile(r"^        (Args|Raises):$", re.MULTILINE)


def public(kind: type[object]) -> dict[str, Any]:
    """Return the public methods that a class defines."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: method for name, method in methods if name == "__init__" or not name.startswith("_")}


def documented() -> Iterator[tuple[str, Any]]:
    """Yield every public method of the package's classes but the iterators' constructors."""
    for pair in PAIRS:
        for kind in pair:
            for name, method in public(kind).items():
                if name != "__init__" or kind in PAIRS[0]:
                    yield f"{kind.__name__}.{name}", method


METHODS = dict(documented())


def arguments(method: Any) -> list[str]:
    """Return the names of a method's parameters beside self."""
    return [name for name in inspect.signature(method).parameters if name != "self"]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_both_clients_have_the_same_methods(pair: tuple[type[object], type[object]]) -> None:
    blocking, of_asyncio = (set(public(kind)) for kind in pair)
    assert {"aclose" if name == "close" else name for name in blocking} - of_asyncio <= BLOCKING_ALONE
    assert of_asyncio - blocking == {"aclose"}


@pytest.mark.parametrize(("target", "source"), FILES)
def test_the_blocking_client_is_the_asynchronous_one(target: str, source: str) -> None:
    written = blocking((FOLDER / source).read_text(encoding="utf-8"), FILES[target, source])
    assert (FOLDER / target).read_text(encoding="utf-8") == written, f"{source} changed: `make docs` writes {target}"


def test_a_text_that_both_clients_do_not_share_has_to_be_in_the_source() -> None:
    with pytest.raises(ValueError, match="tools/blocking_client"):
        blocking("class AsyncClient: ...", {"gone": "other"})


@pytest.mark.parametrize("name", METHODS)
def test_every_public_method_says_what_it_takes_and_raises(name: str) -> None:
    text = METHODS[name].__doc__ or ""
    sections = SECTION.findall(text)
    assert ("Args" in sections) == bool(arguments(METHODS[name]))
    for argument in arguments(METHODS[name]):
        assert re.search(rf"^            \**{argument}: \S", text, re.MULTILINE), argument
    raised = set(re.findall(r"^            (\w+): ", text.partition("Raises:\n")[2], re.MULTILINE))
    assert raised if "Raises" in sections else name.rpartition(".")[2] in RAISES_NO_MORE


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_the_errors_of_every_call_stand_in_the_class(kind: type[object]) -> None:
    raised = re.findall(r"^    (\w+): From every call", inspect.getdoc(kind) or "", re.MULTILINE)
    assert raised == ["RequestError", "DaemonUnavailable", "RequestTimeout"]


@pytest.mark.parametrize("name", METHODS)
def test_raised_errors_are_exported(name: str) -> None:
    _, _, raises = (METHODS[name].__doc__ or "").partition("Raises:\n")
    for error in re.findall(r"^            (\w+):", raises, re.MULTILINE):
        assert issubclass(getattr(car_client, error), car_client.CardError)
        assert error in car_client.__all__


@pytest.mark.parametrize("name", car_client.__all__)
def test_every_exported_class_is_documented(name: str) -> None:
    exported = getattr(car_client, name)
    assert not isinstance(exported, type) or exported.__doc__


def texts() -> dict[str, str]:
    """Return the texts of the options as they stand in the source."""
    tree = ast.parse(Path(options.__file__).read_text(encoding="utf-8"))
    (kind,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == InferOptions.__name__)
    found = {}
    for member, after in zip(kind.body, kind.body[1:], strict=False):
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and isinstance(after, ast.Expr):
            found[member.target.id] = " ".join(ast.literal_eval(after.value).split())
    return found


def test_every_option_has_a_text_and_it_is_the_protocols() -> None:
    kind = KINDS["InferOptions"]
    found = texts()
    assert found.keys() == InferOptions.__annotations__.keys()
    del found["traceparent"]
    assert found == {name: text_of(name, kind) for name in found}
    assert all(found.values())


def test_texts_of_options_are_those_of_the_definitions() -> None:
    source = OPTIONS.read_text(encoding="utf-8")
    assert rewritten(source) == source, "the definitions changed: `make docs` writes the texts again"


def test_a_text_is_removed_added_and_left_alone() -> None:
    source = 'class A:\n    wait: bool\n    """Old."""\n    seq: int\n    own: int\n    """Ours."""\n'
    kind = msgspec.defstruct("A", [("wait", bool), ("seq", Annotated[int, Meta(ge=0, le=9, description="counts")])])
    expected = 'class A:\n    wait: bool\n    seq: int\n    """Counts. 0 to 9."""\n    own: int\n    """Ours."""\n'
    assert rewritten(source, {"A": kind}) == expected
