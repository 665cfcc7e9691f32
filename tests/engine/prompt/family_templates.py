"""A small chat template of each family: an assistant's turn is its text, then its calls as the family writes them."""

# DeepSeek and Step write their control tokens with a wide bar.
# ruff: noqa: RUF001

from car_base.ipc.types import ToolStyle

_OPEN = "<s>{% if tools %}Tools: {{ tools | tojson }}\n{% endif %}{% for message in messages %}{{ message.role }}: "
_NAME, _JSON = "{{ call.function.name }}", "{{ call.function.arguments | tojson }}"
_ARGUMENTS = "{% for key, value in call.function.arguments | items %}"
_VALUE = "{{ value if value is string else value | tojson }}"
_COMMA = "{% if not loop.last %}, {% endif %}"
_END = "{% endfor %}"


def _each(call: str) -> str:
    """Return the loop over a message's calls."""
    return f"{{% for call in message.tool_calls or [] %}}{call}{_END}"


def _some(begin: str, calls: str, end: str) -> str:
    """Return calls between two texts."""
    return f"{{% if message.tool_calls %}}{begin}{_each(calls)}{end}{{% endif %}}"


def _object(name: str = "name", arguments: str = "arguments") -> str:
    return f'{{{{ "{{" }}}}"{name}": "{_NAME}", "{arguments}": {_JSON}{{{{ "}}" }}}}'


def _tagged(begin: str, middle: str, end: str) -> str:
    return f"{_ARGUMENTS}{begin}{{{{ key }}}}{middle}{_VALUE}{end}{_END}"


def _dsml(section: str, space: str = "") -> str:
    token = f"｜DSML｜{space}"
    typed = '" string="{{ "true" if value is string else "false" }}">'
    parameters = _tagged(f'<{token}parameter name="', typed, f"</{token}parameter>")
    call = f'<{token}invoke name="{_NAME}">\n{parameters}</{token}invoke>\n'
    return _some(f"<{token}{section}>\n", call, f"</{token}{section}>")


def _gemma(quote: str) -> str:
    text = f"{quote}{{{{ value }}}}{quote}"
    other = f"{{{{ value | tojson | replace('\"', '{quote}') }}}}"
    value = f"{{% if value is string %}}{text}{{% else %}}{other}{{% endif %}}"
    members = f"{_ARGUMENTS}{{{{ key }}}}:{value}{{% if not loop.last %}},{{% endif %}}{_END}"
    return f"call:{_NAME}{{{{ '{{' }}}}{members}{{{{ '}}' }}}}"


_LISTED = _object() + _COMMA
_HERMES = _each(f"<tool_call>\n{_object()}\n</tool_call>\n")
# JSON's texts, numbers and lists are Python's too; its words are not.
_LITERAL = "{% if value is boolean %}{{ 'True' if value else 'False' }}{% else %}{{ value | tojson }}{% endif %}"
_PYTHON = f"{_NAME}({_ARGUMENTS}{{{{ key }}}}={_LITERAL}{_COMMA}{_END})"
_CODER = f"<function={_NAME}>\n" + _tagged("<parameter=", ">\n", "\n</parameter>\n") + "</function>"
_MINIMAX = "]<]minimax[>["
_COHERE = _object("tool_name", "parameters") + _COMMA
_HARMONY = "<|start|>assistant to=functions.{}<|channel|>commentary json<|message|>{}<|call|>"

_CALLS: dict[ToolStyle, str] = {
    "apertus": _some(
        "<|tools_prefix|>[", f'{{{{ "{{" }}}}"{_NAME}": {_JSON}{{{{ "}}" }}}}{_COMMA}', "]<|tools_suffix|>"
    ),
    "apriel": _some("<tool_calls>[", _LISTED, "]</tool_calls>"),
    "command_r": _some("Action:\n```json\n[", _COHERE, "]\n```"),
    "command_r7b": _some("<|START_ACTION|>[", _COHERE, "]<|END_ACTION|>"),
    "deepseek_r1": _some(
        "<｜tool▁calls▁begin｜>",
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{_NAME}\n```json\n{_JSON}\n```<｜tool▁call▁end｜>\n",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v3_1": _some(
        "<｜tool▁calls▁begin｜>",
        f"<｜tool▁call▁begin｜>{_NAME}<｜tool▁sep｜>{_JSON}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v3_2": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v4_1": _dsml("calls", " "),
    "ernie": "{% if false %}<response>{% endif %}" + _HERMES,
    "firefunction": _some("functools[", _LISTED, "]"),
    "functionary_v3_1": _each(f"<function={_NAME}>{_JSON}</function>"),
    "functionary_v3_2": _each(f">>>{_NAME}\n{_JSON}"),
    "functiongemma": _each(f"<start_function_call>{_gemma('<escape>')}<end_function_call>"),
    "gemma4": _each("<|tool_call>" + _gemma('<|"|>') + "<tool_call|>"),
    "gigachat": _each(f"<|function_call|>{_object()}"),
    "glm": _each(f"<tool_call>{_NAME}\n{_tagged('<arg_key>', '</arg_key><arg_value>', '</arg_value>')}</tool_call>\n"),
    "gpt_oss": _each(_HARMONY.format(_NAME, _JSON)),
    "granite": _some("<|tool_call|>[", _LISTED, "]"),
    "hermes": _HERMES,
    "hunyuan": _some(
        "<tool_calls:opensource>\n",
        f"<tool_call:opensource>{_NAME}<tool_sep:opensource>\n"
        + _tagged("<arg_key:opensource>", "</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>\n")
        + "</tool_call:opensource>\n",
        "</tool_calls:opensource>",
    ),
    "hunyuan_a13b": "{% if false %}<answer>{% endif %}" + _some("<tool_calls>[", _LISTED, "]</tool_calls>"),
    "kimi_k2": _some(
        "<|tool_calls_section_begin|>",
        f"<|tool_call_begin|>functions.{_NAME}:{{{{ loop.index0 }}}}<|tool_call_argument_begin|>{_JSON}"
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "kimi_k3": _some(
        "<|open|>tools<|sep|>",
        f'<|open|>call tool="{_NAME}" index="{{{{ loop.index }}}}"<|sep|>'
        + _tagged(
            '<|open|>argument key="',
            '" type="{{ "string" if value is string else "object" }}"<|sep|>',
            "<|close|>argument<|sep|>",
        )
        + "<|close|>call<|sep|>",
        "<|close|>tools<|sep|>",
    ),
    "lfm2": _some("<|tool_call_start|>[", _PYTHON + _COMMA, "]<|tool_call_end|>"),
    "llama3": "{% if false %}<|python_tag|>{% endif %}"
    + _each(_object("name", "parameters") + _COMMA.replace(",", ";")),
    "llama4": "{% if false %}[func_name1(){% endif %}" + _some("[", _PYTHON + _COMMA, "]"),
    "minicpm5": _each(f'<function name="{_NAME}">' + _tagged('<param name="', '">', "</param>") + "</function>\n"),
    "minimax_m1": "{% if message.tool_calls %}{{ '<tool_calls>\\n' }}"
    + _each(_object() + "\n")
    + "</tool_calls>{% endif %}",
    "minimax_m2": _some(
        "<minimax:tool_call>\n",
        f'<invoke name="{_NAME}">\n' + _tagged('<parameter name="', '">', "</parameter>\n") + "</invoke>\n",
        "</minimax:tool_call>",
    ),
    "minimax_m3": _some(
        f"{_MINIMAX}<tool_call>\n",
        f'{_MINIMAX}<invoke name="{_NAME}">'
        + _tagged(f"{_MINIMAX}<", ">", f"{_MINIMAX}</{{{{ key }}}}>")
        + f"{_MINIMAX}</invoke>\n",
        f"{_MINIMAX}</tool_call>",
    ),
    "mistral": _each(f"[TOOL_CALLS]{_NAME}[ARGS]{_JSON}"),
    "muse": _each(
        f'<|start|>assistant to={_NAME}<|message|><atem:function_calls>\n<atem:invoke name="{_NAME}">\n'
        + _tagged('<atem:parameter name="', '">', "</atem:parameter>\n")
        + "</atem:invoke>\n</atem:function_calls><|eom|>"
    ),
    "nemotron": _some("<TOOLCALL>[", _LISTED, "]</TOOLCALL>"),
    "olmo3": _some("<function_calls>\n", _PYTHON + "\n", "</function_calls>"),
    "qwen3_coder": _each(f"<tool_call>\n{_CODER}\n</tool_call>\n"),
    "seed_oss": _each(
        f"<seed:tool_call>\n<function={_NAME}>\n"
        + _tagged("<parameter=", ">", "</parameter>\n")
        + "</function>\n</seed:tool_call>\n"
    ),
    "solar": _some(
        "<|tool_calls|>",
        f"<|tool_call:begin|>{{{{ call.id }}}}<|tool_call:name|>{_NAME}<|tool_call:args|>{_JSON}<|tool_call:end|>",
        "<|calls|>",
    ),
    "step3": _some(
        "<｜tool_calls_begin｜>",
        f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{_NAME}">'
        + _tagged('<steptml:parameter name="', '">', "</steptml:parameter>")
        + "</steptml:invoke><｜tool_call_end｜>",
        "<｜tool_calls_end｜>",
    ),
    "xlam": "{% if false %}a single JSON array{% endif %}" + _some("[", _LISTED, "]"),
}
TEMPLATES: dict[ToolStyle, str] = {
    style: _OPEN + "{{ message.content or '' }}" + calls + "</s>{% endfor %}" for style, calls in _CALLS.items()
}
