"""The table of the syntaxes of tool calls, with the models that write them."""

from car_base.ipc import types
from tools.reference.comments import said_of
from tools.reference.protocol import table


def styles() -> str:
    """Return every style with its models."""
    return table(("`tool_style`", "models"), [(f"`{style}`", said) for style, said in said_of(types.ToolStyle, types)])


TABLES = {"tool styles": styles}
