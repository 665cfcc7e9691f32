"""How a model writes reasoning and tool calls, as its chat template tells."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

ToolStyle = Literal["hermes", "llama3", "mistral"]


class Tags(NamedTuple):
    """What stands around reasoning."""

    open: str
    close: str


# hermes: each call is one object between these.
CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
# llama3: the answer is objects, perhaps after this.
PYTHON_TAG = "<|python_tag|>"
# mistral: an array of objects after the first, or a name, an id and the arguments after one each.
TOOL_CALLS = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"

_MARKERS: dict[ToolStyle, tuple[str, ...]] = {
    "hermes": (CALL_OPEN, CALL_CLOSE),
    "llama3": (PYTHON_TAG,),
    "mistral": (TOOL_CALLS, CALL_ID, ARGS),
}

_THINKING = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
)

# The first that a template holds wins: fine-tuned models keep markers of the model that they came from.
_TOOLS: tuple[tuple[str, ToolStyle], ...] = (
    (CALL_OPEN, "hermes"),
    (TOOL_CALLS, "mistral"),
    (PYTHON_TAG, "llama3"),
    ("dictionary of argument name and its value", "llama3"),
)

# Templates that write something else than JSON between the tags of hermes.
_NOT_JSON = ("<function=", "<arg_key>")


@dataclass(frozen=True)
class Format:
    """How one model writes; None where it does not think or its tool calls cannot be read."""

    thinking: Tags | None = None
    tools: ToolStyle | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be a control token of the vocabulary and has to come as text to be read."""
        return (*(self.thinking or ()), *(_MARKERS[self.tools] if self.tools else ()))


def detect(template: str) -> Format:
    """Return the format of the models that come with this chat template (jinja source)."""
    return Format(_thinking(template), _tools(template))


def _thinking(template: str) -> Tags | None:
    # Some templates only cut old reasoning away, at the closing tag.
    return next((tags for tags in _THINKING if tags.open in template or tags.close in template), None)


def _tools(template: str) -> ToolStyle | None:
    if any(other in template for other in _NOT_JSON):
        return None
    return next((style for marker, style in _TOOLS if marker in template), None)
