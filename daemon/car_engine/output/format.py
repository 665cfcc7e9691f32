"""Syntax of a model's reasoning and tool calls, detected in its chat template."""

import re
from dataclasses import dataclass

from car_base.ipc.template_syntax import style_of, tags_of
from car_base.ipc.types import Tags, ToolStyle
from car_engine.output.families import FAMILIES, Family

_TOKEN = re.compile(r"<\|[a-z]+\|?>|<[a-z]+\|>")


@dataclass(frozen=True)
class Format:
    """The syntax of one model: None if it does not think, or if its tool calls cannot be read."""

    thinking: Tags | None = None
    tools: ToolStyle | None = None

    @property
    def family(self) -> Family | None:
        """The family of the model's calls."""
        return FAMILIES[self.tools] if self.tools is not None else None

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that may be control tokens of the vocabulary and have to be shown as text to be read."""
        # Control tokens may be parts of tags.
        tags = (text for tag in self.thinking or () for text in (tag, *_TOKEN.findall(tag)))
        return (*dict.fromkeys(tags), *(self.family.markers if self.family else ()))


def detect(template: str, style: ToolStyle | None = None, tags: Tags | None = None) -> Format:
    """Return the format of models with this chat template; a configured `style` and `tags` override the template's."""
    return Format(tags or tags_of(template), style or style_of(template))
