"""The conversation of a call as an engine's chat template takes it."""

from car_base.ipc.frames import Chat
from car_protocol.conversation import ToolChoice
from car_protocol.infer import InferParams
from car_protocol.text import TokenizeParams


def chat_of(params: InferParams | TokenizeParams) -> Chat | None:
    """Return the conversation of params; None where they have a text or tokens."""
    if params.messages is None:
        return None
    choice: ToolChoice = params.tool_choice if isinstance(params, InferParams) else "auto"
    return Chat(
        messages=params.messages,
        tools=params.tools if choice != "none" else [],
        tool_choice=choice,
        parallel=params.parallel_tool_calls,
        template_args=params.template_args,
        reasoning=params.reasoning or "auto",
        continue_last=params.continue_last,
    )
