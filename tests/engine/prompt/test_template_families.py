"""The documented prompts of model families, to the letter and with every control token in its place."""

# DeepSeek writes its control tokens with a wide bar.
# ruff: noqa: RUF001

import pytest

from car_base.ipc.frames import Chat
from car_base.ipc.refusal import Refusal
from car_protocol.conversation import Message
from tests.engine.prompt.chats import FAMILIES, Family, call, calls, chat, family, result, tool, user

WEATHER = tool("get_weather", "Weather of a city", {"city": {"type": "string"}}, ["city"])
WEATHER_PARAMETERS = (
    '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
)
WEATHER_FUNCTION = '{"name": "get_weather", "description": "Weather of a city", ' + WEATHER_PARAMETERS + "}"
WEATHER_JSON = '{"type": "function", "function": ' + WEATHER_FUNCTION + "}"

TALK = (Message("system", "Be kind."), Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Bye"))
ASKED = (
    Message("system", "Be kind."),
    Message("user", "Paris?"),
    calls(call("get_weather", '{"city":"Paris"}')),
    result('{"sky": "clear"}'),
)


def check(name: Family, asked: Chat, text: str, *, inside: bool = False) -> None:
    """Check that a chat is this text, all of whose control tokens count."""
    template, vocabulary = family(name)
    rendered = template.render(asked)
    assert vocabulary.written(rendered.tokens) == text
    assert rendered.tokens == vocabulary.tokenize(text, add_special=False, parse_special=True)
    assert rendered.inside == inside


def test_chatml() -> None:
    check(
        "chatml",
        chat(*TALK),
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
    )


def test_gemma_folds_the_system_message_into_the_first_turn() -> None:
    check(
        "gemma",
        chat(*TALK),
        "<bos><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
    )


# Claude Code adds such a reminder to a conversation, and OpenAI's agents add a developer's to their instructions.
LATE = (Message("system", "Be kind."), Message("system", "Be brief."), Message("user", "Hi"), Message("system", "Now."))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma", "<bos><start_of_turn>user\nBe kind.\n\nBe brief.\n\nHi\n\nNow.<end_of_turn>\n<start_of_turn>model\n"),
        ("mistral", "<s>[INST] Be kind.\n\nBe brief.\n\nHi\n\nNow.[/INST]"),
    ],
)
def test_late_system_messages_are_the_users_text_where_a_template_takes_none(name: Family, expected: str) -> None:
    check(name, chat(*LATE), expected)


def test_a_template_that_takes_late_system_messages_has_them_in_their_place() -> None:
    turns = ("system\nBe kind.", "system\nBe brief.", "user\nHi", "system\nNow.")
    written = "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns)
    check("chatml", chat(*LATE), written + "<|im_start|>assistant\n")


def test_gemma_refuses_roles_that_do_not_alternate() -> None:
    with pytest.raises(Refusal) as error:
        family("gemma")[0].render(chat(*user("one", "two")))
    assert error.value.data["param"] == "messages"


def test_llama_3() -> None:
    head = "<|start_header_id|>%s<|end_header_id|>\n\n"
    check(
        "llama3",
        chat(*TALK, template_args={"date_string": "1 Jan 2030"}),
        "<|begin_of_text|>" + head % "system" + "Cutting Knowledge Date: December 2023\nToday Date: 1 Jan 2030\n\n"
        "Be kind.<|eot_id|>" + head % "user" + "Hi<|eot_id|>" + head % "assistant" + "Hello<|eot_id|>"
        "" + head % "user" + "Bye<|eot_id|>" + head % "assistant",
    )


LLAMA_TOOLS = """\
<|begin_of_text|><|start_header_id|>system<|end_header_id|>

Environment: ipython
Cutting Knowledge Date: December 2023
Today Date: 07 Jan 2030

Be kind.<|eot_id|><|start_header_id|>user<|end_header_id|>

Given the following functions, please respond with a JSON for a function call with its proper arguments that best \
answers the given prompt.

Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}. \
Do not use variables.

{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {
                    "type": "string"
                }
            },
            "required": [
                "city"
            ]
        }
    }
}

Paris?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

"""


def test_llama_3_with_tools() -> None:
    check(
        "llama3",
        chat(*ASKED, tools=[WEATHER]),
        LLAMA_TOOLS + '{"name": "get_weather", "parameters": {"city": "Paris"}}<|eot_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\n"
        r'"{\"sky\": \"clear\"}"<|eot_id|><|start_header_id|>assistant<|end_header_id|>' + "\n\n",
    )


def test_llama_3_with_a_built_in_tool() -> None:
    called = (*ASKED[:2], calls(call("brave_search", '{"query": "Paris"}')), result("sunny"))
    check(
        "llama3",
        chat(*called, tools=[WEATHER], template_args={"builtin_tools": ["brave_search"]}),
        LLAMA_TOOLS + '<|python_tag|>brave_search.call(query="Paris")<|eom_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n"sunny"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    )


def test_llama_3_has_two_calls_of_an_answer_one_after_the_other() -> None:
    twice = calls(call("get_weather", '{"city": "Paris"}', key="a"), call("get_weather", '{"city": "Rome"}', key="b"))
    template, vocabulary = family("llama3")
    asked = chat(*user("Where?"), twice, result("rain", key="b"), result("clear", key="a"), tools=[WEATHER])
    text = vocabulary.written(template.render(asked).tokens)
    told = ('{"city": "Paris"}', '"clear"', '{"city": "Rome"}', '"rain"')
    places = [text.rindex(each) for each in told]
    assert places == sorted(places)


def test_mistral() -> None:
    check("mistral", chat(*TALK), "<s>[INST] Hi[/INST] Hello</s>[INST] Be kind.\n\nBye[/INST]")


def test_mistral_with_tools() -> None:
    called = (
        *ASKED[:2],
        calls(
            call("get_weather", '{"city":"Paris"}', key="aaaaaaaa1"),
            call("get_weather", '{"city":"Rome"}', key="aaaaaaaa2"),
        ),
        result("clear", key="aaaaaaaa1"),
        result("rain", key="aaaaaaaa2"),
    )
    check(
        "mistral",
        chat(*called, tools=[WEATHER]),
        f"<s>[AVAILABLE_TOOLS] [{WEATHER_JSON}][/AVAILABLE_TOOLS][INST] Be kind.\n\nParis?[/INST]"
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "aaaaaaaa1"}, '
        '{"name": "get_weather", "arguments": {"city": "Rome"}, "id": "aaaaaaaa2"}]</s>'
        '[TOOL_RESULTS] {"content": "clear", "call_id": "aaaaaaaa1"}[/TOOL_RESULTS]'
        '[TOOL_RESULTS] {"content": "rain", "call_id": "aaaaaaaa2"}[/TOOL_RESULTS]',
    )


def test_phi_4() -> None:
    check(
        "phi4",
        chat(*TALK),
        "<|system|>Be kind.<|end|><|user|>Hi<|end|><|assistant|>Hello<|end|><|user|>Bye<|end|><|assistant|>",
    )


def test_phi_4_with_tools() -> None:
    check(
        "phi4",
        chat(*ASKED, tools=[WEATHER]),
        f"<|system|>Be kind.<|tool|>[{WEATHER_FUNCTION}]<|/tool|><|end|><|user|>Paris?<|end|><|assistant|>"
        '<|tool_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}<|/tool_call|><|end|>'
        '<|tool_response|>{"sky": "clear"}<|end|><|assistant|>',
    )


def test_qwen_3_forgets_earlier_thoughts() -> None:
    talk = (
        *TALK[:2],
        Message("assistant", "Hello", reasoning="greet"),
        *user("And?"),
        Message("assistant", "<think>\nmore\n</think>\n\nFine"),
        TALK[3],
    )
    check(
        "qwen3",
        chat(*talk),
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n"
        "<|im_start|>assistant\nFine<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
    )


QWEN_TOOLS = (
    "<|im_start|>system\nBe kind.\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{WEATHER_JSON}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> "
    'XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
)


def test_qwen_3_with_tools_keeps_the_thoughts_of_this_turn() -> None:
    thinking = calls(call("get_weather", '{"city":"Paris"}'), call("get_weather", '{"city":"Rome"}'), reasoning="ask")
    check(
        "qwen3",
        chat(*ASKED[:2], thinking, result("clear"), result("rain"), tools=[WEATHER]),
        QWEN_TOOLS + "<|im_start|>user\nParis?<|im_end|>\n<|im_start|>assistant\n<think>\nask\n</think>\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nclear\n</tool_response>\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n",
    )


def test_qwen_3_without_reasoning_has_an_empty_thought() -> None:
    check(
        "qwen3",
        chat(*user("Hi"), reasoning="off"),
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    )


def test_deepseek_r1_starts_inside_a_thought() -> None:
    thought = Message("assistant", "<think>hm</think>Hello")
    check(
        "deepseek_r1",
        chat(*TALK[:2], thought, TALK[3]),
        "<｜begin▁of▁sentence｜>Be kind.<｜User｜>Hi<｜Assistant｜>Hello<｜end▁of▁sentence｜>"
        "<｜User｜>Bye<｜Assistant｜><think>\n",
        inside=True,
    )


def test_deepseek_r1_without_reasoning_has_an_empty_thought() -> None:
    check(
        "deepseek_r1",
        chat(*user("Hi"), reasoning="off"),
        "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>\n\n</think>\n\n",
    )


def test_deepseek_r1_with_tools() -> None:
    check(
        "deepseek_r1",
        chat(*ASKED, Message("assistant", "Clear."), *user("Thanks")),
        "<｜begin▁of▁sentence｜>Be kind.<｜User｜>Paris?<｜Assistant｜><｜tool▁calls▁begin｜>"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
        'get_weather\n```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
        '<｜end▁of▁sentence｜><｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>{"sky": "clear"}<｜tool▁output▁end｜>'
        "<｜tool▁outputs▁end｜>Clear.<｜end▁of▁sentence｜><｜User｜>Thanks<｜Assistant｜><think>\n",
        inside=True,
    )


def test_templates_tell_whether_they_take_tools() -> None:
    assert [name for name in FAMILIES if family(name)[0].takes_tools] == ["llama3", "mistral", "phi4", "qwen3"]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_continues_an_answer(name: Family) -> None:
    template, vocabulary = family(name)
    said = (Message("user", "Hi"), Message("assistant", "Hello wor"))
    whole, continued = (
        vocabulary.written(template.render(chat(*said, continue_last=continues)).tokens) for continues in (False, True)
    )
    assert continued.endswith("Hello wor")
    assert whole.startswith(continued)
