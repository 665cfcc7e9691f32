"""Tool calls are read out of an answer in every style, and nothing else of it is lost."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_base.ipc.frames import CallDelta
from car_base.ipc.types import ToolStyle
from car_engine.output.literals import as_value
from car_protocol.conversation import ToolCall
from tests.engine.output.calls import call, in_order, push_all, read, reader
from tests.engine.output.pieces import PLACES, cut, every

F = '{"name": "f", "arguments": {"a": 1}}'
G = '{"name": "g", "arguments": {}}'
CALL_F, CALL_G = call(0, "f", '{"a": 1}'), call(1, "g", "{}")


def both_ways(style: ToolStyle, text: str) -> list[str | ToolCall]:
    """Read a text at once and letter by letter."""
    parts = read(style, [text])
    assert read(style, list(text)) == parts
    return parts


HERMES = [
    (f"<tool_call>\n{F}\n</tool_call>", [CALL_F]),
    (f"<tool_call>{F}</tool_call>", [CALL_F]),
    (f"<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{G}\n</tool_call>\n", [CALL_F, CALL_G]),
    (f"Let me see.\n\n<tool_call>\n{F}\n</tool_call>\n Done.\n", ["Let me see.", CALL_F, "Done.\n"]),
    (f"a<tool_call>{F}</tool_call> b <tool_call>{G}</tool_call>c", ["a", CALL_F, "b", CALL_G, "c"]),
    (f"<tool_call>\n{F}\n<tool_call>\n{G}", [CALL_F, CALL_G]),
    (f"<tool_call>{F} more", [CALL_F, "more"]),
    (f"<tool_call>\n{F}\n</tool", [CALL_F, "</tool"]),
    ("no call \n", ["no call \n"]),
    ("a < b << c <tool> d", ["a < b << c <tool> d"]),
    (f"<<tool_call>{F}", ["<", CALL_F]),
    (f"{F}", [F]),
    ("", []),
    (" \n", [" \n"]),
    ("a <tool_c", ["a <tool_c"]),
    ("a <tool_call>\n", ["a <tool_call>\n"]),
    ("a <tool_call> b", ["a <tool_call> b"]),
    ('a <tool_call>\n{"name": "f", "argum', ["a", call(0, "f", "", "arguments")]),
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call>\n' + f"<tool_call>{F}</tool_call>",
     [CALL_F, call(1, "f", '{"a": 1}')]),
    ('<tool_call>{"name": "f, "arguments": {}}</tool_call>', ['<tool_call>{"name": "f, "arguments": {}}</tool_call>']),
    ('<tool_call>{"arguments": {}}</tool_call> b', ['<tool_call>{"arguments": {}}</tool_call> b']),
    (f'<tool_call>{{"name": 1}}<tool_call>{F}</tool_call>', ['<tool_call>{"name": 1}', CALL_F]),
    (f"<tool_call>\n<tool_call>\n{F}", ["<tool_call>\n", CALL_F]),
]  # fmt: skip

LLAMA3 = [
    ('{"name": "f", "parameters": {"a": 1}}', [CALL_F]),
    (f" \n{F}\n", [CALL_F]),
    (f"<|python_tag|>{F}", [CALL_F]),
    (f"<|python_tag|> {F}; {G}", [CALL_F, CALL_G]),
    (f"{F}\n{G}", [CALL_F, CALL_G]),
    (f"{F}{G}", [CALL_F, CALL_G]),
    (f"<|python_tag|>{F}<|python_tag|>{G}", [CALL_F, CALL_G]),
    ('{"type": "function", "name": "f", "parameters": {"a": 1}}', [CALL_F]),
    (f"{F} and more; {G}", [CALL_F, f"and more; {G}"]),
    (f"{F}; so {G}", [CALL_F, f"; so {G}"]),
    (f"A call: {F}", [f"A call: {F}"]),
    (f" text <|python_tag|>{F}", [f" text <|python_tag|>{F}"]),
    ('<|python_tag|>search.call(query="x")', ['<|python_tag|>search.call(query="x")']),
    ('{"answer": 1}', ['{"answer": 1}']),
    (f'{{"name": "f"}} {G}', [f'{{"name": "f"}} {G}']),
    ('{"name": "f", "parameters": {"a": ', [call(0, "f", '{"a": ', "arguments")]),
    ("<|python", ["<|python"]),
    (" ", [" "]),
    ("", []),
]

MISTRAL = [
    (f"[TOOL_CALLS][{F}]", [CALL_F]),
    (f"[TOOL_CALLS] [{F}, {G}]", [CALL_F, CALL_G]),
    (f"[TOOL_CALLS] [\n  {F} ,\n  {G}\n] \n", [CALL_F, CALL_G]),
    (f"One moment. [TOOL_CALLS] [{F}] So.", ["One moment.", CALL_F, "So."]),
    (f"[TOOL_CALLS][{F}", [CALL_F]),
    (f"[TOOL_CALLS][{F}, ", [CALL_F, ", "]),
    (f'[TOOL_CALLS][{F}, {{"name": }}, {G}]', [CALL_F, f', {{"name": }}, {G}]']),
    (f'[TOOL_CALLS][{{"name": "f", "arguments": {{"a": 1}}, "id": "123456789"}}, {G}]', [CALL_F, CALL_G]),
    ('[TOOL_CALLS]f[ARGS]{"a": 1}', [CALL_F]),
    ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', [CALL_F, CALL_G]),
    ('Well.[TOOL_CALLS]f[CALL_ID]123456789[ARGS] {"a": 1}\n[TOOL_CALLS]g{}', ["Well.", CALL_F, CALL_G]),
    ("[TOOL_CALLS]", ["[TOOL_CALLS]"]),
    ("[TOOL_CALLS][]", ["[TOOL_CALLS][]"]),
    ("[TOOL_CALLS] what then", ["[TOOL_CALLS] what then"]),
    ("[TOOL_CALLS][ARGS]{}", ["[TOOL_CALLS][ARGS]{}"]),
    ("[TOOL_CALLS]{}", ["[TOOL_CALLS]{}"]),
    ("[TOOL_CALLS]f[ARGS][1]", [call(0, "f", "[1]", "arguments")]),
    ('[TOOL_CALLS]f[ARGS]{"a": 01}', [call(0, "f", '{"a": 01}', "arguments")]),
    ('[TOOL_CALLS]f[CALL_ID]12[ARGS]{"a', [call(0, "f", '{"a', "arguments")]),
    ("[TOOL_CALLS]<f>{}", ["[TOOL_CALLS]<f>{}"]),
    ("[TOOL_CALLS]f[CALL", ["[TOOL_CALLS]f[CALL"]),
    (f"[1] [TOOL] {F}", [f"[1] [TOOL] {F}"]),
    ("", []),
]


XLAM = [
    (f"[{F}, {G}]", [CALL_F, CALL_G]),
    ('[{"name": "f", "arguments": {"a": }]', [call(0, "f", '{"a": }', "arguments")]),
    ('[{"name": "f", "arguments": 1}]', ['[{"name": "f", "arguments": 1}]']),
    ("[1, 2]", ["[1, 2]"]),
]


@pytest.mark.parametrize(("text", "parts"), XLAM)
def test_calls_of_xlam_are_an_array(text: str, parts: list[str | ToolCall]) -> None:
    assert both_ways("xlam", text) == parts


LLAMA4 = [
    ("[f(a=1)]", [CALL_F]),
    (" [f(a=1), g()]\n", [CALL_F, CALL_G]),
    ("<|python_start|>[f( a = 1 )]<|python_end|>", [CALL_F]),
    ("<|python_start|>[f(a=1)]<|python_end|> So.", [CALL_F, "So."]),
    ("[f(a=1)] g(a=1)", [CALL_F, "g(a=1)"]),
    (F, [CALL_F]),
    ("[f(a)] is no call", ["[f(a)] is no call"]),
    ("[f](a=1)", ["[f](a=1)"]),
    ("[1, 2]", ["[1, 2]"]),
    ("f(a=1)", ["f(a=1)"]),
    ("[f(", ["[f("]),
    ("[f(a", ["[f(a"]),
    ("[f(a=", [call(0, "f", '{"a": ', "arguments")]),
    ("<|python_", ["<|python_"]),
    ("", []),
]


@pytest.mark.parametrize(("text", "parts"), LLAMA4)
def test_calls_of_llama4_are_a_list_with_keywords(text: str, parts: list[str | ToolCall]) -> None:
    assert both_ways("llama4", text) == parts


@pytest.mark.parametrize(("text", "parts"), HERMES)
def test_calls_of_hermes_stand_between_tags(text: str, parts: list[str | ToolCall]) -> None:
    assert both_ways("hermes", text) == parts


@pytest.mark.parametrize(("text", "parts"), LLAMA3)
def test_calls_of_llama3_are_the_whole_answer(text: str, parts: list[str | ToolCall]) -> None:
    assert both_ways("llama3", text) == parts


@pytest.mark.parametrize(("text", "parts"), MISTRAL)
def test_calls_of_mistral_follow_a_marker(text: str, parts: list[str | ToolCall]) -> None:
    assert both_ways("mistral", text) == parts


@pytest.mark.parametrize(
    "arguments",
    [
        r'{"a": "\"}"}',
        r'{"a": "\\", "b": "]"}',
        '{"a": {"b": [{"c": {}}, []]}}',
        '{"ü": "日本 😀"}',
        '{"a": "</tool_call>\\n<tool_call>{}[TOOL_CALLS]; <|python_tag|>"}',
        '{ "a" :1 ,\n"b": [ ] }',
        "{}",
    ],
)
def test_arguments_come_as_written(arguments: str) -> None:
    written = f'{{"name": "f", "arguments":  {arguments} }}'
    expected = [call(0, "f", arguments)]
    assert both_ways("hermes", f"<tool_call>\n{written}\n</tool_call>") == expected
    assert both_ways("llama3", written) == expected
    assert both_ways("mistral", f"[TOOL_CALLS][{written}]") == expected
    assert both_ways("mistral", f"[TOOL_CALLS]f[ARGS]{arguments}") == expected


def test_a_call_comes_as_it_is_written_its_name_first() -> None:
    pieces = ["So: ", "[TOOL_CALLS]", '[{"name": "f"', ', "argum', 'ents": {"a', '": ', "1}", "}", ", ", G, "]"]
    assert push_all(reader("mistral"), pieces) == [
        ["So:"],
        [],
        [],
        [CallDelta(0, id="id0", name="f")],
        [CallDelta(0, arguments='{"a')],
        [CallDelta(0, arguments='": ')],
        [CallDelta(0, arguments="1}")],
        [CallDelta(0, ended=True)],
        [],
        [CallDelta(1, id="id1", name="g"), CallDelta(1, arguments="{}"), CallDelta(1, ended=True)],
        [],
        [],
    ]


def test_only_what_could_become_a_call_or_whitespace_before_one_is_held_back() -> None:
    pieces = ["one", " two ", "three <", "b", "> <tool_call>", "{", '"a": ', "x", " y"]
    assert ["".join(map(str, parts)) for parts in push_all(reader("hermes"), pieces)] == [
        "one",
        " two",
        " three",
        " <b",
        ">",
        "",
        "",
        ' <tool_call>{"a": x',
        " y",
        "",
    ]


def test_nesting_without_end_makes_invalid_arguments() -> None:
    arguments = '{"a":' * 200
    text = '<tool_call>{"name": "f", "arguments": ' + arguments
    assert both_ways("hermes", text) == [call(0, "f", arguments, "arguments")]


@pytest.mark.slow
@pytest.mark.parametrize("ended", [True, False])
def test_long_arguments_are_read_in_one_go(ended: bool) -> None:
    arguments = json.dumps({"text": 'a"\\{' * 25_000, "list": [[1]] * 25_000})
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}'
    expected = [call(0, "f", arguments) if ended else call(0, "f", arguments[:-1], "arguments")]
    assert read("hermes", every(text if ended else text[:-2], 4)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("style", ["hermes", "mistral"])
def test_many_beginnings_are_read_in_one_go(style: ToolStyle) -> None:
    text = '<tool_call>{"' * 10_000 + "<tool_call" * 10_000 + '[TOOL_CALLS][{"' * 10_000 + "[" * 10_000
    assert read(style, [text]) == [text]
    assert read(style, every(text, 5)) == [text]


STYLES: list[ToolStyle] = ["hermes", "llama3", "mistral"]
FRAGMENTS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", "[CALL_ID]", F, G, "[", "]"]
FRAGMENTS += ['{"name": "é", "parameters": ', '{"b": "\\"}"}', "{}", "}", "{", '"', ",", ";", " ", "\n", "f", "<"]
SOUP = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
BEGINNINGS = {"hermes": "<tool_call>", "llama3": "", "mistral": "[TOOL_CALLS]"}


@settings(max_examples=500)
@given(st.sampled_from(STYLES), SOUP, PLACES)
def test_any_cutting_gives_the_same(style: ToolStyle, text: str, places: list[int]) -> None:
    text = BEGINNINGS[style] + text
    assert read(style, cut(text, places)) == read(style, [text])


def squeezed(text: str) -> str:
    """Remove whitespace."""
    return "".join(text.split())


@settings(max_examples=500)
@given(st.sampled_from(STYLES), SOUP, PLACES)
def test_text_names_and_arguments_come_in_their_order(style: ToolStyle, text: str, places: list[int]) -> None:
    text = BEGINNINGS[style] + text
    rest = squeezed(text)
    for part in read(style, cut(text, places)):
        wanted = [part] if isinstance(part, str) else [part.function.name, part.function.arguments]
        for each in map(squeezed, wanted):
            # Arguments that never came are an empty object.
            if each != "{}":
                assert each in rest
                rest = rest[rest.find(each) + len(each) :]


WORDS = st.text("ab<[{ \n", max_size=8)
VALUES = st.recursive(st.text(max_size=4) | st.integers() | st.none(), lambda values: st.lists(values, max_size=3))
CALLS = st.lists(st.tuples(st.text(min_size=1, max_size=4), st.dictionaries(st.text(max_size=3), VALUES, max_size=3)))


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(STYLES), WORDS, CALLS, st.booleans(), PLACES)
def test_any_calls_are_read_back(
    style: ToolStyle, before: str, calls: list[tuple[str, dict[str, object]]], ascii_only: bool, places: list[int]
) -> None:
    written_out = [json.dumps({"name": name, "arguments": values}, ensure_ascii=ascii_only) for name, values in calls]
    text = {
        "hermes": before + "".join(f"<tool_call>{one}</tool_call>\n" for one in written_out),
        "llama3": "; ".join(written_out),
        "mistral": before + (f"[TOOL_CALLS][{','.join(written_out)}]" if calls else ""),
    }[style]
    parts = read(style, cut(text, places))
    found = [part for part in parts if isinstance(part, ToolCall)]
    assert [(one.function.name, json.loads(one.function.arguments)) for one in found] == calls
    assert "".join(part for part in parts if isinstance(part, str)).rstrip() == (
        "" if style == "llama3" else before.rstrip(" \n")
    )


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('{"name": "f", "arguments": {"a" : 1}}', "f", '{"a" : 1}'),
        ('{"name": "f", "parameters": {}}', "f", "{}"),
        ('{"parameters":  { "b": "}" } , "type": "function", "name": "f"}', "f", '{ "b": "}" }'),
        (r'{"name": "\u00e9 x", "arguments": {"a": "\u00e9é"}}', "é x", r'{"a": "\u00e9é"}'),
        ('{"name": "f", "arguments": {"n": ' + "9" * 5000 + "}}", "f", '{"n": ' + "9" * 5000 + "}"),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', "f", '{"a": 1}'),
        ('{"name": "f"}', "f", "{}"),
    ],
)
def test_a_call_keeps_its_arguments_as_written(text: str, name: str, arguments: str) -> None:
    assert both_ways("hermes", f"<tool_call>{text}") == [call(0, name, arguments)]


@pytest.mark.parametrize("text", ["{}", '{"arguments": {}}', '{"name": "", "arguments": {}}', '{"name" "f"}'])
def test_an_object_without_a_name_is_text(text: str) -> None:
    assert both_ways("hermes", f"<tool_call>{text}") == [f"<tool_call>{text}"]


@pytest.mark.parametrize("surplus", ["}", "}}", "}\n}"])
def test_brackets_that_close_a_call_once_too_often_are_not_shown(surplus: str) -> None:
    text = f'<tool_call>\n{{"name": "f", "arguments": {{"a": 1}}}}{surplus}\n</tool_call>'
    assert both_ways("hermes", text * 2 + " So.") == [call(0, "f", '{"a": 1}'), call(1, "f", '{"a": 1}'), "So."]


def test_brackets_behind_a_call_that_nothing_ends_are_text() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n} is no end'
    assert both_ways("hermes", text) == [call(0, "f", '{"a": 1}'), "} is no end"]


@pytest.mark.parametrize(
    "arguments", ["[]", "null", '{"a": 01}', '{"a" 1}', '{"a": 1,}', '{"a": tru}', r'{"a": "\x"}', r'{"a": "\ud800"}']
)
def test_arguments_that_are_not_an_object_come_as_they_are(arguments: str) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call> So.'
    parts = both_ways("hermes", text)
    assert isinstance(parts[0], ToolCall)
    assert parts[0].invalid == "arguments"
    assert parts[0].function.arguments.startswith(arguments)
    assert parts[1] == "So."


@pytest.mark.parametrize(
    ("value", "streams"),
    [
        *(("import os", True), ("  The end", True), ("truest", True), ("", True)),
        *(("true", False), ("None of it", False), ("3 apples", False), ("[1]", False), ("<b>", False)),
    ],
)
def test_a_parameter_of_any_type_is_streamed_where_its_beginning_is_that_of_a_text(value: str, streams: bool) -> None:
    begun = f"<tool_call>\n<function=f>\n<parameter=a>\n{value} and so on"
    calls = reader("qwen3_coder")
    parts = [part for letter in begun for part in calls.push(letter)]
    came = "".join(part.arguments for part in parts if isinstance(part, CallDelta))
    assert came == ('{"a": "' + f"{value} and so on" if streams else '{"a": ')
    parts += calls.push("\n</parameter>\n</function>\n</tool_call>") + calls.finish()
    (found,) = in_order(parts)
    assert isinstance(found, ToolCall)
    assert json.loads(found.function.arguments) == {"a": f"{value} and so on"}


VALUE_TEXTS = st.sampled_from(
    ["true", "null", "1", " 2.5", "[1, 'a']", '{"a": 1}', '"x"', "text", " Tr", "\n", "é", "N"]
)


@settings(max_examples=300)
@given(st.lists(VALUE_TEXTS, max_size=4).map("".join), PLACES)
def test_a_parameter_of_any_type_is_the_same_however_it_is_cut(value: str, places: list[int]) -> None:
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
    (whole,) = read("qwen3_coder", [text])
    assert read("qwen3_coder", cut(text, places)) == [whole]
    assert isinstance(whole, ToolCall)
    # What is not a value is the text itself.
    assert json.loads(whole.function.arguments) == {"a": json.loads(as_value(value, "any"))}
