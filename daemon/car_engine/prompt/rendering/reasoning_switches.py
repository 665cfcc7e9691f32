"""The variables by which a template's caller switches a model's thoughts on and off."""

from typing import Any

from car_engine.prompt.rendering.template_reads import Reads
from car_protocol.conversation import ReasoningMode

# Values by variable, of which the first that changes what the template renders counts; texts are words of the template.
_ON: dict[str, tuple[Any, ...]] = {
    "enable_thinking": (True,),
    "thinking": (True,),
    "thinking_mode": ("enabled", "thinking"),
}
_OFF: dict[str, tuple[Any, ...]] = {
    "enable_thinking": (False,),
    "thinking": (False,),
    "thinking_mode": ("disabled", "chat"),
    "thinking_budget": (0,),
    "reasoning_effort": ("none", "no_think", "minimal"),
}
_EFFORT = "reasoning_effort"
# A template's word for no effort, which is its default.
_NO_EFFORT = "no_think"
# The values with which templates show the thoughts of all earlier answers.
_SHOWN = {
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
    "preserve_thinking": True,
    "preserved_thinking": True,
    "keep_past_thinking": True,
    "think_render_option": "all",
}


def switches(reads: Reads, reasoning: ReasoningMode) -> dict[str, Any]:
    """Return the variables for a mode.

    Without `on` and `off` the template's defaults count: a model whose template closes each thought unless its caller
    switches them on thinks.
    """
    match reasoning:
        case "on":
            effort = {_EFFORT: "high"} if _EFFORT in reads.names and _NO_EFFORT in reads.words else {}
            return _chosen(_ON, reads) | effort
        case "off":
            # A model that thinks always does so as little as it can.
            effort = {_EFFORT: "low"} if _EFFORT in reads.names else {}
            return effort | _chosen(_OFF, reads)
    return dict.fromkeys(reads.switches, True)


def shown_thoughts(reads: Reads) -> dict[str, Any]:
    """Return the variables with which the template shows the thoughts of all earlier answers."""
    return {name: value for name, value in _SHOWN.items() if name in reads.names}


def _chosen(values: dict[str, tuple[Any, ...]], reads: Reads) -> dict[str, Any]:
    known = {name: [each for each in given if _is_known(each, reads)] for name, given in values.items()}
    return {name: given[0] for name, given in known.items() if given and name in reads.names}


def _is_known(value: Any, reads: Reads) -> bool:
    return not isinstance(value, str) or value in reads.words
