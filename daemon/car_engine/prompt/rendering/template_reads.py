"""The variables, members and forms that a chat template reads, by its source."""

from typing import NamedTuple

from jinja2 import nodes

# Variables by which a caller switches thoughts on and off.
_SWITCHES = ("enable_thinking", "thinking")


class Reads(NamedTuple):
    """The variables that a template loads, the members and words in it, and how it takes some members of a message.

    `null_content` is true if it tests content for null, `thought_parts` if it takes thoughts as parts of content.
    `switches` are variables without a default: the template closes each thought unless they are set.
    """

    names: frozenset[str]
    words: frozenset[str]
    null_content: bool
    thought_parts: bool
    switches: tuple[str, ...]


def reads_of(tree: nodes.Template) -> Reads:
    """Return what a parsed template reads."""
    words = {const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str)}
    words |= {member.attr for member in tree.find_all(nodes.Getattr)}
    return Reads(
        names=frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"),
        words=frozenset(words),
        null_content=any(map(_tests_content, tree.find_all(nodes.Test))),
        thought_parts="reasoning_content" not in words and any(map(_finds_thoughts, tree.find_all(nodes.Compare))),
        switches=tuple(name for name in _SWITCHES if _closes_unless(tree, name)),
    )


def _tests_content(test: nodes.Test) -> bool:
    """Return whether this is a test that a message's content is none."""
    match test.node:
        case nodes.Getattr(attr="content") | nodes.Getitem(arg=nodes.Const(value="content")):
            return test.name == "none"
        case nodes.Name():
            return test.name == "none" and test.node.name == "content"
    return False


def _finds_thoughts(compare: nodes.Compare) -> bool:
    """Return whether this compares a part's type with `thinking`."""
    return any(
        operand.op == "eq" and isinstance(operand.expr, nodes.Const) and operand.expr.value == "thinking"
        for operand in compare.ops
    )


def _closes_unless(tree: nodes.Template, name: str) -> bool:
    """Return whether a template tests `not name` and has no default for it."""
    if not any(_is(test.node, name) for test in tree.find_all(nodes.Not)):
        return False
    tested = any(_is(test.node, name) for test in tree.find_all(nodes.Test))
    filled = any(_is(each.node, name) for each in tree.find_all(nodes.Filter))
    stored = any(each.name == name and each.ctx == "store" for each in tree.find_all(nodes.Name))
    return not (tested or filled or stored)


def _is(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name
