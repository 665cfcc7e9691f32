"""Syntax of a model's thoughts and calls by the source of its chat template; daemon and engine read it alike."""

# DeepSeek writes its control tokens with a wide bar.
# ruff: noqa: RUF001

import re

from car_daemon.ipc.types import Tags, ToolStyle

# What a template of each family shows. The first wins: markers of a base model stay in templates of fine-tuned ones.
_SIGNS: dict[ToolStyle, str] = {
    "gpt_oss": r"<\|channel\|>(?s:.*)<\|message\|>",
    "muse": "<atem:function_calls>",
    "kimi_k3": r"<\|open\|>",
    "gemma4": r"<\|tool_call>",
    "functiongemma": "<start_function_call>",
    "step3": "<steptml:invoke|<｜tool_calls_begin｜>",
    "seed_oss": "<seed:tool_call>",
    "hunyuan_a13b": "<answer>(?s:.*)<tool_calls>|<tool_calls>(?s:.*)<answer>",
    "hunyuan": r"<tool_sep\{\}>|<tool_sep:opensource>",
    "glm": "<arg_key>",
    "minimax_m3": r"\]<\]minimax\[>\[",
    "minimax_m2": "<minimax:tool_call>",
    "deepseek_v3_2": "DSML(?s:.*)function_calls",
    "deepseek_v4": "DSML",
    "deepseek_r1": r"<｜tool▁calls▁begin｜>(?s:.*)```json",
    "deepseek_v3_1": r"<｜tool▁calls▁begin｜>",
    "kimi_k2": r"<\|tool_calls_section_begin\|>",
    "solar": r"<\|tool_call:begin\|>",
    "command_r7b": r"<\|START_ACTION\|>",
    "command_r": "Action:(?s:.*)tool_name",
    "apertus": r"<\|tools_prefix\|>",
    "lfm2": r"<\|tool_call_start\|>|<\|tool_list_start\|>|List of tools: \[",
    "nemotron": "<TOOLCALL>",
    "gigachat": r"<\|function_call\|>|function call<\|role_sep\|>|<\|role_sep\|>",
    "minicpm5": "<function name=",
    "qwen3_coder": r"<tool_call>(?s:.*)<function=",
    "functionary_v3_1": "<function=",
    "functionary_v3_2": r">>>",
    "firefunction": "functools",
    "granite": r"<\|tool_call\|>",
    "minimax_m1": r"<tool_calls>\\n",
    "apriel": r"<tool_calls>",
    "ernie": "<response>(?s:.*)<tool_call>|<tool_call>(?s:.*)<response>",
    "hermes": "<tool_call>",
    "olmo3": "<function_calls>",
    "mistral": r"\[TOOL_CALLS\]",
    "llama4": r"func_name1?\(",
    "xlam": "single JSON array",
    "llama3": r"<\|python_tag\|>|<\|python_start\|>|dictionary of argument name and its value",
}
_THINKING = (
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
_CODE = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
_TOOLS = re.compile(r"\b(?:tools|functions)\b")


def style_of(template: str) -> ToolStyle | None:
    """Return the style of the calls of models with this chat template, None where it is not known."""
    return next((style for style, sign in _SIGNS.items() if re.search(sign, template)), None)


def tags_of(template: str) -> Tags | None:
    """Return the tags around the thoughts of models with this chat template, None without any."""
    if style_of(template) in _MESSAGES:
        return None
    return next((tags for tags in _THINKING if _shows(template, tags)), None)


def _shows(template: str, tags: Tags) -> bool:
    if tags.open in template or _BUILT.get(tags.open, tags.open) in template:
        return True
    # Some templates only cut old reasoning away, at the closing tag.
    return tags.close in template and tags.close != _COMMON


def abilities_of(template: str, style: ToolStyle | None = None, tags: Tags | None = None) -> list[str]:
    """Return which of `tools` and `thinking` a model has; a configured `style` and `tags` override its template's."""
    style = style or style_of(template)
    shows_tools = any(_TOOLS.search(code[0]) for code in _CODE.finditer(template))
    thinks = style in _MESSAGES or tags is not None or tags_of(template) is not None or "enable_thinking" in template
    return [*(["tools"] if shows_tools and style is not None else []), *(["thinking"] if thinks else [])]
