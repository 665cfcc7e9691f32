"""Conversations into prompts: rendered by the model's chat template, with positions for their images."""

from collections.abc import Sequence as Rows
from typing import NamedTuple

from msgspec import json, structs

from car_base.ipc.frames import Chat, ImageSlot, Reading
from car_base.ipc.refusal import Refusal
from car_engine.output.format import Format
from car_engine.output.literals import kinds_of
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.image_prompt import Counts, take_images
from car_engine.prompt.template import ChatTemplate, Rendered
from car_protocol.conversation import SYSTEM_ROLES, AudioPart, ImagePart
from car_protocol.envelope import require_few_members
from car_protocol.errors import RpcError
from car_protocol.limits import MAX_MEMBERS

_THOUGHTLESS = "the model has no thoughts that its chat template shows: leave `reasoning` out, or set `thinking_tags`"
_MANY = f"the arguments of its calls have more than {MAX_MEMBERS:,} objects, arrays and texts: send fewer calls"
_USUAL = frozenset({*SYSTEM_ROLES, "user", "assistant", "tool"})  # every template shows their texts
_NOT_JSON = "the arguments of a call are not JSON"
_UNREAD = "the syntax of its tool calls is not known: set `tool_style` in the model's entry"


class RenderedPrompt(NamedTuple):
    """A prompt as tokens, how its answer is read, and its images."""

    tokens: list[int]
    reading: Reading = Reading()
    images: Rows[ImageSlot] = ()
    own: tuple[int, ...] = (1,)  # as of a rendered chat


class Conversations:
    """Renders the conversations of one model.

    `counts` count the positions of images and sounds; if the model takes no images, `no_images` is the reason if
    there is more to say. `no_template` is why a model's template cannot be used.
    """

    def __init__(
        self,
        template: ChatTemplate | None,
        limit: ContextLimit,
        counts: Counts = Counts(),  # noqa: B008 - immutable
        no_images: str | None = None,
        no_template: str | None = None,
    ) -> None:
        self._template = template
        self.limit = limit
        self._counts = counts
        self._no_images = no_images
        self._no_template = no_template

    def reads(self, variable: str) -> bool:
        """Return whether the chat template may read a variable of this name."""
        return self._template is not None and self._template.reads(variable)

    def answered(self, chat: Chat) -> RenderedPrompt:
        """Return a conversation's prompt up to the text of an answer without thoughts; raises Refusal."""
        rendered = self.prompt(chat, None)
        lead = self._template.lead if self._template is not None else []
        return rendered._replace(tokens=[*rendered.tokens, *lead])

    def prompt(self, chat: Chat, max_tokens: int | None) -> RenderedPrompt:
        """Return a conversation's prompt; raises Refusal."""
        template = self._template
        if template is None:
            raise _lacks("chat_template", self._no_template)
        if chat.tools and not template.takes_tools:
            raise _lacks("tools", "the chat template does not take tools")
        if chat.tools and template.format.tools is None:
            raise _lacks("tools", _UNREAD)
        if chat.reasoning == "on" and "thinking" not in template.abilities:
            raise _lacks("thinking", _THOUGHTLESS)
        # The texts that every template shows.
        texts = [message.text for message in chat.messages] + [tool.function.description for tool in chat.tools]
        self.limit.check_bytes(sum(len(text.encode()) for text in texts), max_tokens)
        _check_arguments(chat)
        if any(message.media for message in chat.messages):
            rendered, images = self._with_images(chat, template, max_tokens)
        else:
            rendered, images = template.render(chat, self.limit, max_tokens), []
            self._check_roles(chat, template, rendered)
        if not rendered.tokens:
            raise Refusal("invalid_params", param="messages", why="the chat template makes no prompt of them")
        return RenderedPrompt(rendered.tokens, _reading(template.format, chat, rendered), images, rendered.own)

    def _check_roles(self, chat: Chat, template: ChatTemplate, rendered: Rendered) -> None:
        """Refuse messages of unusual roles if the prompt is the same with other texts in them."""
        place = next((place for place, message in enumerate(chat.messages) if message.role not in _USUAL), None)
        if place is None:
            return
        messages = [
            message if message.role in _USUAL else structs.replace(message, content=f"{message.text}.")
            for message in chat.messages
        ]
        others = template.render(structs.replace(chat, messages=messages), self.limit, None)
        if others.tokens == rendered.tokens:
            why = f"the chat template shows no text of the role {chat.messages[place].role!r}: send another role"
            raise Refusal("invalid_params", param=f"messages[{place}].role", why=why)

    def _with_images(
        self, chat: Chat, template: ChatTemplate, max_tokens: int | None
    ) -> tuple[Rendered, list[ImageSlot]]:
        kinds = {type(part) for message in chat.messages for part in message.media}
        if ImagePart in kinds and self._counts.image is None:
            raise _lacks("images", self._no_images)
        if AudioPart in kinds and self._counts.audio is None:
            raise _lacks("audio", "the model has no projector for audio")
        # Twice the context: what nearly fits is counted to its end, so that the refusal has the prompt's length.
        prompt = take_images(chat, self._counts, 2 * self.limit.tokens)
        if prompt is None:
            raise self.limit.exceeded(None, max_tokens)
        rendered = template.render_images(prompt, self.limit, max_tokens)
        places = zip(rendered.starts, map(len, prompt.placeholders), prompt.files, prompt.audio, strict=True)
        images = [ImageSlot(*place) for place in places]
        return rendered, sorted(images, key=lambda image: image.start)


def _check_arguments(chat: Chat) -> None:
    """Refuse calls whose arguments have more values than a frame may have: decoding millions takes seconds."""
    calls = [call for message in chat.messages for call in message.tool_calls or ()]
    text = ",".join(call.function.arguments for call in calls)
    try:
        require_few_members(f"[{text}]".encode())
    except RpcError as error:
        why = _MANY if error.reason == "limit" else _NOT_JSON
        raise Refusal("invalid_params", param="messages", why=why) from error


def _lacks(ability: str, why: str | None) -> Refusal:
    return Refusal("model_unavailable", lacks=ability, **({} if why is None else {"why": why}))


def _reading(form: Format, chat: Chat, rendered: Rendered) -> Reading:
    """Return how the answer to a chat is read."""
    family = form.family
    return Reading(
        form.thinking,
        rendered.inside,
        form.tools if family is not None and (chat.tools or family.frames_text) else None,
        form.markers,
        chat.reasoning == "keep",
        kinds_of([tool.function for tool in chat.tools]) if chat.tools else None,
        rendered.begun,
        bool(chat.tools) and not chat.parallel,
        {tool.function.name: json.encode(tool.function.parameters).decode() for tool in chat.tools}
        if family is not None and family.untagged
        else {},
    )
