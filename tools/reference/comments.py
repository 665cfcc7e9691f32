"""What the comments beside the values of a `Literal` say of them."""

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, get_args


def said_of(literal: Any, module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the values of a type that a module defines, each with the comment on its line; each needs a comment."""
    comments = dict(re.findall(r'^    "(\w+)",  # (.+)$', inspect.getsource(module), re.MULTILINE))
    for value in get_args(literal):
        yield value, comments[value]
