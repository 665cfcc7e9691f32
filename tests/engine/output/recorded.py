"""Answers in the form of each family: thoughts, text and two calls."""

# DeepSeek and Hunyuan write their control tokens with a wide bar.
# ruff: noqa: RUF001

from typing import NamedTuple

from car_base.ipc.types import ToolStyle
from car_protocol.conversation import Function

LOOK_UP = Function(
    "look_up",
    "Look a word up",
    {
        "type": "object",
        "properties": {
            "word": {"type": "string"},
            "n": {"type": "integer"},
            "deep": {"type": "boolean"},
            "list": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["word"],
    },
)
LIST_ALL = Function("list_all", "List all words", {"type": "object", "properties": {}})
FUNCTIONS = [LOOK_UP, LIST_ALL]
ARGUMENTS = {"word": 'x "é"\nz <b> {', "n": -3, "deep": True, "list": ["a", "b, c"]}
JSON = r'{"word": "x \"é\"\nz <b> {", "n": -3, "deep": true, "list": ["a", "b, c"]}'
WORD = 'x "é"\nz <b> {'
LIST = '["a", "b, c"]'


class Recorded(NamedTuple):
    """An answer of a family, and the text in it; `begun` is what its prompt ends with."""

    style: ToolStyle
    text: str
    said: str = ""
    thought: str = ""
    begun: str = ""


def _objects(separator: str, name: str = "name", arguments: str = "arguments") -> str:
    return separator.join(
        (f'{{"{name}": "look_up", "{arguments}": {JSON}}}', f'{{"{name}": "list_all", "{arguments}": {{}}}}')
    )


def _tagged(opening: str, middle: str, closing: str) -> str:
    values = {"word": WORD, "n": "-3", "deep": "true", "list": LIST}
    return "".join(f"{opening}{key}{middle}{value}{closing}" for key, value in values.items())


def _dsml(section: str, space: str = "") -> str:
    strings = {"word": (WORD, "true"), "n": ("-3", "false"), "deep": ("true", "false"), "list": (LIST, "false")}
    token = f"｜DSML｜{space}"
    inner = "".join(
        f'<{token}parameter name="{key}" string="{text}">{value}</{token}parameter>\n'
        for key, (value, text) in strings.items()
    )
    return (
        f'<{token}{section}>\n<{token}invoke name="look_up">\n{inner}</{token}invoke>\n'
        f'<{token}invoke name="list_all">\n</{token}invoke>\n</{token}{section}>'
    )


def _kimi3() -> str:
    values = {"word": (WORD, "string"), "n": ("-3", "number"), "deep": ("true", "boolean"), "list": (LIST, "array")}
    inner = "".join(
        f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
        for key, (value, kind) in values.items()
    )
    return (
        f'<|open|>tools<|sep|><|open|>call tool="look_up" index="1"<|sep|>{inner}<|close|>call<|sep|>'
        '<|open|>call tool="list_all" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>'
    )


_COHERE = _objects(",\n    ", "tool_name", "parameters")
_HERMES = _objects("\n</tool_call>\n<tool_call>\n")
_LINES = _objects("\n")
_GLM = _tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
_MINIMAX = "]<]minimax[>["
_PYTHON = """[look_up(word='x "é"\\nz <b> {', n=-3, deep=True, list=['a', "b, c"]), list_all()]"""
_CODER = f"""<function=look_up>
<parameter=word>
{WORD}
</parameter>
<parameter=n>
-3
</parameter>
<parameter=deep>
True
</parameter>
<parameter=list>
['a', 'b, c']
</parameter>
</function>"""
_R1 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look_up\n```json\n"
    f"{JSON}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>list_all\n```json\n{{}}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)


def _invokes(prefix: str) -> str:
    inner = _tagged(f'<{prefix}parameter name="', '">', f"</{prefix}parameter>\n")
    empty = f'<{prefix}invoke name="list_all">\n</{prefix}invoke>\n'
    return f'<{prefix}invoke name="look_up">\n{inner}</{prefix}invoke>\n{empty}'


def _step3(kind: str) -> str:
    inner = _tagged('<steptml:parameter name="', '">', "</steptml:parameter>")
    return (
        f'<｜tool_calls_begin｜><｜tool_call_begin｜>{kind}<steptml:invoke name="look_up">{inner}</steptml:invoke>'
        f'<｜tool_call_end｜><｜tool_call_begin｜>{kind}<steptml:invoke name="list_all"></steptml:invoke>'
        "<｜tool_call_end｜><｜tool_calls_end｜>"
    )


RECORDED = [
    Recorded("apertus", f'So.<|tools_prefix|>[{{"look_up": {JSON}}}, {{"list_all": {{}}}}]<|tools_suffix|>', "So."),
    Recorded("apriel", f"So.\n<tool_calls>[{_objects(', ')}]</tool_calls>\n", "So."),
    Recorded("command_r", f"Action:\n```json\n[\n{_COHERE}\n]\n```"),
    Recorded(
        "command_r7b",
        f"<|START_RESPONSE|>So.<|END_RESPONSE|><|START_ACTION|>[\n    {_COHERE}\n]<|END_ACTION|>",
        "So.",
    ),
    Recorded(
        "command_r7b",
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "look_up", "parameters": {JSON}}},\n'
        '    {"tool_call_id": "1", "tool_name": "list_all", "parameters": {}}\n]<|END_ACTION|>',
    ),
    Recorded("deepseek_r1", _R1),
    Recorded("deepseek_r1", _R1.replace("\n```<", "```<").replace("function<｜tool▁sep｜>", "")),
    Recorded(
        "deepseek_v3_1",
        f"So.\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>list_all<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "So.",
    ),
    Recorded("deepseek_v3_2", f"So.\n\n{_dsml('function_calls')}", "So."),
    Recorded("deepseek_v4_1", f"So.\n\n{_dsml('calls', ' ')}", "So."),
    Recorded("deepseek_v4", f"So.\n\n{_dsml('tool_calls')}", "So."),
    Recorded("ernie", f"<response>\nSo.\n</response>\n\n<tool_call>\n{_HERMES}\n</tool_call>", "So."),
    Recorded("firefunction", f" functools[{_objects(', ')}]"),
    Recorded("functionary_v3_1", f"So.<function=look_up>{JSON}</function><function=list_all>{{}}</function>", "So."),
    Recorded("functionary_v3_2", f"all\nSo.>>>look_up\n{JSON}>>>list_all\n{{}}", "So.", begun=">>>"),
    Recorded("functionary_v3_2", f"look_up\n{JSON}>>>list_all\n{{}}>>>all\nSo.", "So.", begun=">>>"),
    Recorded(
        "functiongemma",
        "So.<start_function_call>call:look_up{deep:true,list:[<escape>a<escape>,<escape>b, c<escape>],n:-3,"
        'word:<escape>x "é"\nz <b> {<escape>}<end_function_call>'
        "<start_function_call>call:list_all{}<end_function_call>",
        "So.",
    ),
    Recorded(
        "gemma4",
        'So.<|tool_call>call:look_up{word:<|"|>x "é"\nz <b> {<|"|>,n:-3,deep:true,list:[<|"|>a<|"|>,<|"|>b, c<|"|>]}'
        "<tool_call|><|tool_call>call:list_all{}<tool_call|>",
        "So.",
    ),
    Recorded(
        "gigachat",
        f'So.<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "look_up", "arguments": {JSON}}}'
        '<|function_call|>{"name": "list_all", "arguments": {}}',
        "So.",
    ),
    Recorded(
        "glm",
        f"So.\n<tool_call>look_up\n{_GLM}</tool_call>\n<tool_call>list_all\n</tool_call>",
        "So.",
    ),
    Recorded(
        "glm",
        f"<tool_call>look_up{_tagged('<arg_key>', '</arg_key><arg_value>', '</arg_value>')}</tool_call>"
        "<tool_call>list_all</tool_call>",
    ),
    Recorded(
        "gpt_oss",
        "<|channel|>analysis<|message|>Well, <b>.<|end|><|start|>assistant<|channel|>commentary<|message|>So."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>"
        f"{JSON}<|call|><|start|>assistant to=functions.list_all<|channel|>commentary json<|message|>{{}}<|call|>",
        "So.",
        "Well, <b>.",
        "<|start|>assistant",
    ),
    Recorded(
        "gpt_oss",
        f" to=functions.look_up<|channel|>analysis<|message|>{JSON}<|call|><|start|>assistant<|channel|>commentary "
        "to=functions.list_all <|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>So.",
        "So.",
        begun="<|start|>assistant",
    ),
    Recorded("granite", f"<|tool_call|>[{_objects(', ')}]"),
    Recorded("granite", f"<|tool_call|>[{_objects(', ')}]<|/tool_call|>"),
    Recorded("hermes", f"So.\n<tool_call>\n{_HERMES}\n</tool_call>", "So."),
    Recorded("hermes", f"So.\n<tool_call>\n{_HERMES}\n", "So."),
    Recorded(
        "hunyuan",
        "So.<tool_calls:opensource>\n<tool_call:opensource>look_up<tool_sep:opensource>\n"
        + _tagged("<arg_key:opensource>", "</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>\n")
        + "</tool_call:opensource>\n<tool_call:opensource>list_all<tool_sep:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        "So.",
    ),
    Recorded("hunyuan_a13b", f"<answer>\nSo.\n</answer>\n<tool_calls>[{_objects(', ')}]</tool_calls>", "So."),
    Recorded("hunyuan_a13b", f"<tool_calls>\n[\n{_objects(', ')}\n]\n</tool_calls>"),
    Recorded(
        "kimi_k2",
        "So.<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>"
        f"{JSON}<|tool_call_end|><|tool_call_begin|>functions.list_all:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        "So.",
    ),
    Recorded("kimi_k3", f"<|open|>response<|sep|>So.<|close|>response<|sep|>{_kimi3()}", "So."),
    Recorded("lfm2", f"So.<|tool_call_start|>{_PYTHON}<|tool_call_end|>", "So."),
    Recorded("lfm2", f"<|tool_call_start|>[{_objects(', ')}]<|tool_call_end|>"),
    Recorded("llama3", _objects("; ", arguments="parameters")),
    Recorded("llama3", "<|python_tag|>" + _objects("; ", arguments="parameters")),
    Recorded("llama3", f"<|python_start|>{_objects('; ', arguments='parameters')}<|python_end|>"),
    Recorded("llama4", _PYTHON),
    Recorded("llama4", f"<|python_start|>{_PYTHON}<|python_end|>"),
    Recorded("llama4", "<|python_start|>" + _objects("\n", arguments="parameters") + "<|python_end|>"),
    Recorded(
        "minicpm5",
        'So.\n<function name="look_up"><param name="word"><![CDATA[x "é"\nz <b> {]]></param><param name="n">-3</param>'
        """<param name="deep">True</param><param name="list">['a', 'b, c']</param></function>\n"""
        '<function name="list_all"></function>',
        "So.",
    ),
    Recorded("minimax_m1", f"So.\n<tool_calls>\n{_LINES}\n</tool_calls>", "So."),
    Recorded("minimax_m2", f"So.\n<minimax:tool_call>\n{_invokes('')}</minimax:tool_call>", "So."),
    Recorded(
        "minimax_m3",
        f'So.{_MINIMAX}<tool_call>\n{_MINIMAX}<invoke name="look_up">{_MINIMAX}<word>{WORD}{_MINIMAX}</word>'
        f"{_MINIMAX}<n>-3{_MINIMAX}</n>{_MINIMAX}<deep>true{_MINIMAX}</deep>{_MINIMAX}<list>{_MINIMAX}<item>a"
        f"{_MINIMAX}</item>{_MINIMAX}<item>b, c{_MINIMAX}</item>{_MINIMAX}</list>{_MINIMAX}</invoke>\n"
        f'{_MINIMAX}<invoke name="list_all">{_MINIMAX}</invoke>\n{_MINIMAX}</tool_call>',
        "So.",
    ),
    Recorded("mistral", f"So.[TOOL_CALLS]look_up[ARGS]{JSON}[TOOL_CALLS]list_all[ARGS]{{}}", "So."),
    Recorded("mistral", f"[TOOL_CALLS]look_up[CALL_ID]123456789[ARGS]{JSON}[TOOL_CALLS]list_all[CALL_ID]1[ARGS]{{}}"),
    Recorded("mistral", f"[TOOL_CALLS] [{_objects(', ')}]"),
    Recorded("mistral_v3", f"[TOOL_CALLS] [{_objects(', ')}]"),
    Recorded(
        "muse",
        " to=self<|message|>Well, <b>.<|eom|><|start|>assistant to=user<|message|>So.<|eom|><|start|>assistant "
        f"to=look_up<|message|><atem:function_calls>\n{_invokes('atem:')}</atem:function_calls><|eot|>",
        "So.",
        "Well, <b>.",
        "<|start|>assistant",
    ),
    Recorded("nemotron", f"So.\n<TOOLCALL>[{_objects(', ')}]</TOOLCALL>", "So."),
    Recorded(
        "olmo3",
        """So.<function_calls>\nlook_up(word='x "é"\\nz <b> {', n=-3, deep=True, list=['a', "b, c"])\nlist_all()\n"""
        "</function_calls>",
        "So.",
    ),
    Recorded(
        "qwen3_coder",
        f"So.\n<tool_call>\n{_CODER}\n</tool_call>\n<tool_call>\n<function=list_all>\n</function>\n</tool_call>",
        "So.",
    ),
    Recorded("qwen3_coder", f"So.\n{_CODER}\n</tool_call>\n<function=list_all>\n</function>", "So."),
    Recorded(
        "seed_oss",
        "So.\n<seed:tool_call>\n<function=look_up>\n"
        + _tagged("<parameter=", ">", "</parameter>\n")
        + "</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=list_all>\n</function>\n</seed:tool_call>",
        "So.",
    ),
    Recorded(
        "solar",
        "<|content|>So.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>look_up"
        f"<|tool_call:args|>{JSON}<|tool_call:end|><|tool_call:begin|>a2<|tool_call:name|>list_all<|tool_call:args|>{{}}"
        "<|tool_call:end|><|calls|>",
        "So.",
    ),
    Recorded("step3", f"So.{_step3('function<｜tool_sep｜>')}", "So."),
    Recorded("step3", f"So.{_step3('')}", "So."),
    Recorded("xlam", f"[{_objects(', ')}]"),
]
