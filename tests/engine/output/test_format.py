"""Chat templates tell how a model writes."""

# DeepSeek writes its control tokens with a wide bar.
# ruff: noqa: RUF001

import pytest

from car_base.ipc.types import Tags, ToolStyle
from car_engine.output.format import Format, detect

HERMES = """For each function call, return a json object with function name and arguments within
<tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args>}"""
THINKING_HERMES = HERMES + "{%- if '</think>' in content %}{{ '<think>\\n' + reasoning }}"
MISTRAL = "{{- '[TOOL_CALLS] [' }}{%- for call in message.tool_calls %}{{ call.function|tojson }}{%- endfor %}"
LLAMA = """Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.
{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}"""
CODER = "<tool_call>\\n<function=example>\\n<parameter=a>1</parameter>\\n</function>\\n</tool_call>"


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ("{% for message in messages %}{{ message.content }}{% endfor %}", None),
        (HERMES, "hermes"),
        (MISTRAL, "mistral"),
        (LLAMA, "llama3"),
        ("{%- if builtin %}{{ '<|python_tag|>' + call }}{%- endif %}", "llama3"),
        (HERMES + "<|python_tag|>", "hermes"),
        (CODER, "qwen3_coder"),
        ("<tool_call>{{ name }}\\n<arg_key>{{ key }}</arg_key>", "glm"),
        ("<response>\\n{{ content }}\\n</response>\\n<tool_call>\\n{{ call.function|tojson }}\\n</tool_call>", "ernie"),
        ("<tool_response>{{ content }}</tool_response><tool_call>{{ call|tojson }}</tool_call>", "hermes"),
        ("<start_function_call>call:{{ call.function.name }}", "functiongemma"),
        ("<answer>{{ content }}</answer><tool_calls>[{{ call|tojson }}]</tool_calls>", "hunyuan_a13b"),
        ("<tool_calls>[{{ call|tojson }}]</tool_calls>", "apriel"),
        ('<steptml:invoke name="{{ call.function.name }}">', "step3"),
        ("Example Format: [func_name1(params_name1=1)]", "llama4"),
        ("When using tools, make calls in a single JSON array: [{{ example }}]<|python_tag|>", "xlam"),
    ],
)
def test_a_template_shows_the_style_of_tool_calls(template: str, style: ToolStyle | None) -> None:
    assert detect(template) == Format(None, style)


DSML = "{%- set token = '｜DSML｜' -%}{{ '<' + token + 'SECTION>\\n' }}{{ message.tool_calls | tojson }}"
JOINED = "{%- set token = '｜DSML｜' -%}" + '{{ "<" ~ token ~ "SECTION>" }}'
WRITTEN = "<｜DSML｜SECTION>{{ message.tool_calls | tojson }}"


@pytest.mark.parametrize(
    ("section", "style"),
    [
        ("function_calls", "deepseek_v3_2"),
        ("tool_calls", "deepseek_v4"),
        (" calls", "deepseek_v4_1"),
        ("acts", None),
        (" tool_calls", None),
        (" function_calls", None),
        ("new_tool_calls", None),
    ],
)
def test_a_template_of_deepseek_is_of_the_family_whose_section_it_writes(section: str, style: ToolStyle | None) -> None:
    for template in (DSML, JOINED, WRITTEN, f"DSML </function_calls> {DSML}"):
        assert detect(template.replace("SECTION", section)) == Format(None, style)


@pytest.mark.parametrize(
    ("template", "tags"),
    [
        ("{{ '<think>\\n' }}", Tags("<think>", "</think>")),
        ("{% set content = content.split('</think>')[-1] %}", Tags("<think>", "</think>")),
        ("[THINK]{{ thinking }}[/THINK]", Tags("[THINK]", "[/THINK]")),
        ("<seed:think>{{ thinking }}</seed:think>", Tags("<seed:think>", "</seed:think>")),
        ("<|START_THINKING|>{{ plan }}<|END_THINKING|>", Tags("<|START_THINKING|>", "<|END_THINKING|>")),
    ],
)
def test_a_template_shows_the_tags_of_reasoning(template: str, tags: Tags) -> None:
    assert detect(template) == Format(tags, None)


def test_a_template_may_tell_both() -> None:
    assert detect(THINKING_HERMES) == Format(Tags("<think>", "</think>"), "hermes")


def test_the_markers_of_a_format_are_those_that_its_parsers_look_for() -> None:
    assert Format().markers == ()
    assert Format(Tags("[THINK]", "[/THINK]"), "mistral").markers == (
        "[THINK]",
        "[/THINK]",
        "[TOOL_CALLS]",
        "[CALL_ID]",
        "[ARGS]",
    )
    assert Format(None, "hermes").markers == ("<tool_call>", "</tool_call>")
    assert Format(None, "llama3").markers == ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
