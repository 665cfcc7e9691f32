"""Syntax of a model's thoughts and calls by the source of its chat template; daemon and engine read it alike."""

# DeepSeek writes its control tokens with a wide bar.
# ruff: noqa: RUF001

import re
from collections.abc import Iterator

from car_base.ipc.types import Tags, ToolStyle


def _dsml(section: str) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a section that opens right behind DeepSeek's token, which templates write, join or fill in."""
    return tuple(("DSML", before + section) for before in ("｜", "'", '"', "}"))


# A template of a family shows a row of its texts. The first row that is shown wins: markers of a base model stay in
# templates of fine-tuned models. Plain searches: the time of an expression with gaps grows with the square.
_SIGNS: dict[ToolStyle, tuple[tuple[str, ...], ...]] = {
    "gpt_oss": (("<|channel|>", "<|message|>"),),
    "muse": (("<atem:function_calls>",),),
    "kimi_k3": (("<|open|>",),),
    "gemma4": (("<|tool_call>",),),
    "functiongemma": (("<start_function_call>",),),
    "step3": (("<steptml:invoke",), ("<｜tool_calls_begin｜>",)),
    "seed_oss": (("<seed:tool_call>",),),
    "hunyuan_a13b": (("<answer>", "<tool_calls>"), ("<tool_calls>", "<answer>")),
    "hunyuan": (("<tool_sep{}>",), ("<tool_sep:opensource>",)),
    "glm": (("<arg_key>",),),
    "minimax_m3": (("]<]minimax[>[",),),
    "minimax_m2": (("<minimax:tool_call>",),),
    "deepseek_v3_2": _dsml("function_calls>"),
    "deepseek_v4_1": _dsml(" calls>"),
    "deepseek_v4": _dsml("tool_calls>"),
    "deepseek_r1": (("<｜tool▁calls▁begin｜>", "```json"),),
    "deepseek_v3_1": (("<｜tool▁calls▁begin｜>",),),
    "kimi_k2": (("<|tool_calls_section_begin|>",),),
    "solar": (("<|tool_call:begin|>",),),
    "command_r7b": (("<|START_ACTION|>",),),
    "command_r": (("Action:", "tool_name"),),
    "apertus": (("<|tools_prefix|>",),),
    "lfm2": (("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [",)),
    "nemotron": (("<TOOLCALL>",),),
    "gigachat": (("<|function_call|>",), ("function call<|role_sep|>",), ("<|role_sep|>",)),
    "minicpm5": (("<function name=",),),
    "qwen3_coder": (("<tool_call>", "<function="),),
    "functionary_v3_1": (("<function=",),),
    "functionary_v3_2": ((">>>",),),
    "firefunction": (("functools",),),
    "granite": (("<|tool_call|>",),),
    "minimax_m1": (("<tool_calls>\\n",),),
    "apriel": (("<tool_calls>",),),
    "ernie": (("<response>", "<tool_call>"), ("<tool_call>", "<response>")),
    "hermes": (("<tool_call>",),),
    "olmo3": (("<function_calls>",),),
    "mistral": (("[TOOL_CALLS]",),),
    "llama4": (("func_name(",), ("func_name1(",)),
    "xlam": (("single JSON array",),),
    "llama3": (("<|python_tag|>",), ("<|python_start|>",), ("dictionary of argument name and its value",)),
}
THINKING_TAGS = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<mm:think>", "</mm:think>"),
    Tags("<think:opensource>", "</think:opensource>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    Tags("<|channel>thought", "<channel|>"),
    Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    Tags("<|think|>", "<|end|>"),
    Tags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)
# Ends other things too.
_COMMON = "<|end|>"
# What shows tags that a template builds out of parts.
_BUILT = {"<think:opensource>": "<think{}>", "<|open|>think<|sep|>": "<|open|>"}
# Families whose thoughts are messages of their own.
_MESSAGES: frozenset[ToolStyle] = frozenset({"gpt_oss", "muse"})
_CODE_BEGINS, _CODE_ENDS = re.compile(r"\{[{%]"), re.compile(r"[%}]\}")
_TOOLS = re.compile(r"\b(?:tools|functions)\b")


def style_of(template: str) -> ToolStyle | None:
    """Return the style of the calls of models with this chat template, None if it is not known."""
    return next((style for style, rows in _SIGNS.items() if any(_in_order(template, row) for row in rows)), None)


def tags_of(template: str) -> Tags | None:
    """Return the tags around the thoughts of models with this chat template, None without any."""
    if style_of(template) in _MESSAGES:
        return None
    return next((tags for tags in THINKING_TAGS if _shows(template, tags)), None)


def _in_order(template: str, texts: tuple[str, ...]) -> bool:
    place = 0
    for text in texts:
        found = template.find(text, place)
        if found < 0:
            return False
        place = found + len(text)
    return True


def _codes(template: str) -> Iterator[str]:
    """Yield the expressions and statements of a template."""
    end = 0
    while (begin := _CODE_BEGINS.search(template, end)) and (close := _CODE_ENDS.search(template, begin.end())):
        end = close.end()
        yield template[begin.start() : end]


def _shows(template: str, tags: Tags) -> bool:
    if tags.open in template or _BUILT.get(tags.open, tags.open) in template:
        return True
    # Some templates only cut old reasoning away, at the closing tag.
    return tags.close in template and tags.close != _COMMON


def abilities_of(template: str, style: ToolStyle | None = None, tags: Tags | None = None) -> list[str]:
    """Return which of `tools` and `thinking` a model has; a configured `style` and `tags` override its template's."""
    style = style or style_of(template)
    shows_tools = any(map(_TOOLS.search, _codes(template)))
    thinks = style in _MESSAGES or tags is not None or tags_of(template) is not None or "enable_thinking" in template
    return [*(["tools"] if shows_tools and style is not None else []), *(["thinking"] if thinks else [])]
