"""Every template of llama.cpp's folder shows each turn, tool, call and result of a conversation."""

from typing import Any

import pytest

from car_daemon.engine.prompt.template import ChatTemplate, TemplateError
from car_protocol.conversation import Function, Message, Tool
from tests.daemon.engine.prompt.chats import TODAY, call, calls, chat, result, tool
from tests.daemon.engine.prompt.fakes import FakeVocabulary
from tests.daemon.engine.prompt.template_folder import VARIABLE, template_sources

SOURCES = template_sources()
VOCABULARY = FakeVocabulary(["<s>", "</s>"], begin="<s>", end="</s>")
# Templates without a word for the turns of tools.
ALTERNATING = {"google-gemma-2-2b-it"}
# Templates that show no calls of earlier answers.
SILENT = {
    "HuggingFaceTB-SmolLM3-3B",
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
# Templates that show either a turn's text or its calls.
EITHER = {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "llama-cpp-deepseek-r1"}
# Templates that drop messages of the role `tool`.
DEAF = {"llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct"}

SYSTEM, ASKED, ANSWER = Message("system", "Kindly reply"), Message("user", "Which sky?"), Message("assistant", "Blue")
WEATHER = tool("get_weather", "Weather of a city", {"city": {"type": "string"}, "days": {"type": "array"}}, ["city"])
BARE = Tool("function", Function("ping_host"))
CALLED = calls(call("get_weather", '{"city": "Paris"}'))
RESULT = result("sunny spells")

pytestmark = pytest.mark.skipif(
    not SOURCES, reason=f"no chat templates of llama.cpp: set {VARIABLE} to the source distribution of llama-cpp-python"
)


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(SOURCES[name], VOCABULARY, now=lambda: TODAY)


def written(template: ChatTemplate, *messages: Message, **members: Any) -> str:
    """Return the text of a conversation."""
    return VOCABULARY.written(template.render(chat(*messages, **members)).tokens)


@pytest.mark.parametrize("name", SOURCES)
def test_a_conversation_is_shown_in_its_order(name: str) -> None:
    text = written(template_of(name), SYSTEM, ASKED, ANSWER, Message("user", "And then?"))
    places = [text.find(said) for said in ("Which sky?", "Blue", "And then?")]
    assert -1 not in places
    assert places == sorted(places)
    assert "Kindly reply" in text


@pytest.mark.parametrize("name", SOURCES)
def test_a_developers_message_is_shown(name: str) -> None:
    assert "Kindly reply" in written(template_of(name), Message("developer", "Kindly reply"), ASKED)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("shown", [WEATHER, BARE], ids=["whole", "bare"])
def test_a_tool_is_shown_also_without_description_and_parameters(name: str, shown: Tool) -> None:
    template = template_of(name)
    if template.takes_tools:
        assert shown.function.name in written(template, ASKED, tools=[shown])


@pytest.mark.parametrize("name", sorted(set(SOURCES) - ALTERNATING))
@pytest.mark.parametrize("tools", [[WEATHER, BARE], []], ids=["tools", "none"])
def test_a_call_without_content_and_its_result_are_shown_and_the_conversation_goes_on(
    name: str, tools: list[Tool]
) -> None:
    template = template_of(name)
    ends = [(), (Message("assistant", "So it is"), Message("user", "Thanks!"))]
    for end in ends:
        text = written(template, ASKED, CALLED, RESULT, *end, tools=tools)
        assert name in SILENT or ("get_weather" in text and "Paris" in text)
        assert name in DEAF or "sunny spells" in text
        # A signature in Python has defaults of None.
        assert text.count("None") == written(template, ASKED, tools=tools).count("None")


@pytest.mark.parametrize("name", sorted(set(SOURCES) - ALTERNATING))
def test_a_call_with_thoughts_and_text_is_shown(name: str) -> None:
    turn = Message(
        "assistant", "I look.", reasoning="Which city", tool_calls=[call("get_weather", '{"city": "Paris"}')]
    )
    text = written(template_of(name), ASKED, turn, RESULT, tools=[WEATHER])
    assert "sunny spells" in text or name in DEAF
    assert "Paris" in text or name in SILENT | EITHER


@pytest.mark.parametrize("name", sorted(ALTERNATING & set(SOURCES)))
def test_a_template_without_turns_of_tools_refuses_them_in_its_own_words(name: str) -> None:
    with pytest.raises(TemplateError, match="invalid_params") as error:
        written(template_of(name), ASKED, CALLED, RESULT)
    assert "roles must alternate" in str(error.value.data["why"])
