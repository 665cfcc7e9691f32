"""Every template of llama.cpp's folder shows each turn, tool, call and result of a conversation."""

from functools import cache
from typing import Any

import pytest

from car_base.ipc.refusal import Refusal
from car_engine.prompt.rendering.writer import TemplateWriter
from car_engine.prompt.template import ChatTemplate
from car_protocol.conversation import Function, Message, Tool
from tests.engine.prompt.chats import TODAY, call, calls, chat, opened, result, tool
from tests.engine.prompt.fakes import FakeVocabulary
from tests.engine.prompt.template_folder import MISSING, template_sources

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

pytestmark = pytest.mark.skipif(not SOURCES, reason=MISSING)
# How a prompt ends with `auto`, `on` and `off`: inside a thought, after a closed one, or without (`-`).
THOUGHTS = {
    "Apertus-8B-Instruct": "---",
    "Apriel-1.6-15b-Thinker-fixed": "iic",
    "Bielik-11B-v3.0-Instruct": "-i-",
    "ByteDance-Seed-OSS": "--c",
    "Cohere2MoE": "iic",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "--c",
    "GLM-4.6": "--c",
    "GLM-4.7-Flash": "iic",
    "HuggingFaceTB-SmolLM3-3B": "--c",
    "Kimi-K2-Thinking": "---",
    "Kimi-K3": "ii-",
    "LFM2.5-8B-A1B": "---",
    "LFM2.5-Instruct": "---",
    "MiniMax-M2": "iic",
    "MiniMax-M3": "-ic",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "iic",
    "NVIDIA-Nemotron-Nano-v2": "iic",
    "Qwen-QwQ-32B": "iic",
    "Qwen-Qwen3-0.6B": "--c",
    "Qwen3.5-4B": "iic",
    "Reka-Edge": "-i-",
    "Spark2.5": "iic",
    "StepFun3.5-Flash": "iic",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "iic",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "iic",
    "deepseek-ai-DeepSeek-V3.1": "cic",
    "deepseek-ai-DeepSeek-V3.2": "cic",
    "deepseek-ai-DeepSeek-V4": "cic",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "cic",
    "google-gemma-4-31B-it": "c-c",
    "google-gemma-4-31B-it-interleaved": "c-c",
    "ibm-granite-granite-3.3-2B-Instruct": "---",
    "inclusionai-ling-3.0-flash": "iic",
    "llama-cpp-deepseek-r1": "iic",
    "llama-cpp-rwkv-world": "-ic",
    "llm-jp-llm-jp-4.1-8b-thinking": "---",
    "mistralai-Ministral-3-14B-Reasoning-2512": "---",
    "muse-glimmer": "---",
    "openai-gpt-oss-120b": "---",
    "openbmb-MiniCPM5-1B": "-ic",
    "poolside-Laguna-S-2.1": "iic",
    "poolside-Laguna-XS-2.1": "cic",
    "poolside-Laguna-XS.2": "cic",
    "tencent-Hy3": "cic",
    "unsloth-Apriel-1.5": "---",
    "upstage-Solar-Open-100B": "---",
}
# Words that a template writes for a model whose prompt opens no thought.
WORDS = {
    "Apertus-8B-Instruct": "Deliberation: enabled",
    "google-gemma-4-31B-it": "<|think|>",
    "google-gemma-4-31B-it-interleaved": "<|think|>",
    "ibm-granite-granite-3.3-2B-Instruct": "<think>",
}


@cache
def template_of(name: str) -> ChatTemplate:
    return opened(SOURCES[name], VOCABULARY, lambda: TODAY)


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
def test_content_stays_a_text(name: str) -> None:
    assert not TemplateWriter(SOURCES[name], {"bos_token": "", "eos_token": ""}, lambda: TODAY).needs_parts


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


@pytest.mark.parametrize("name", sorted(set(SOURCES) - ALTERNATING - SILENT))
def test_all_calls_of_an_answer_are_shown_with_their_results(name: str) -> None:
    made = [call("get_weather", f'{{"city": "{city}"}}', key=f"call0000{city[0]}") for city in ("Paris", "Rome")]
    results = [result("sunny spells", key="call0000P"), result("light rain", key="call0000R")]
    text = written(template_of(name), ASKED, calls(*made), *results, tools=[WEATHER])
    assert [said in text for said in ("Paris", "Rome", "sunny spells", "light rain")] == [True] * 4


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
    with pytest.raises(Refusal, match="invalid_params") as error:
        written(template_of(name), ASKED, CALLED, RESULT)
    assert "roles must alternate" in str(error.value.data["why"])


@pytest.mark.parametrize("name", SOURCES)
def test_a_model_thinks_as_its_makers_run_it_or_as_it_is_told(name: str) -> None:
    template = template_of(name)
    assert ("thinking" in template.abilities) == (name in THOUGHTS)
    found = "".join(ending(template, reasoning) for reasoning in ("auto", "on", "off"))
    assert found == THOUGHTS.get(name, "---")


def ending(template: ChatTemplate, reasoning: str) -> str:
    rendered = template.render(chat(ASKED, reasoning=reasoning))
    tags = template.format.thinking
    closed = tags is not None and VOCABULARY.written(rendered.tokens).rstrip().endswith(tags.close)
    return "i" if rendered.inside else "c" if closed else "-"


@pytest.mark.parametrize("name", sorted(set(WORDS) & set(SOURCES)))
def test_a_model_that_opens_its_thoughts_itself_is_told_to(name: str) -> None:
    template = template_of(name)
    assert [WORDS[name] in written(template, ASKED, reasoning=each) for each in ("auto", "on", "off")] == [
        False,
        True,
        False,
    ]


# Templates that show no thoughts of earlier answers.
FORGETFUL = {
    "Apertus-8B-Instruct",
    "Apriel-1.6-15b-Thinker-fixed",
    "HuggingFaceTB-SmolLM3-3B",
    "LFM2.5-Instruct",
    "NVIDIA-Nemotron-Nano-v2",
    "Qwen-QwQ-32B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-deepseek-r1",
    "llama-cpp-rwkv-world",
    "llm-jp-llm-jp-4.1-8b-thinking",
    "unsloth-Apriel-1.5",
}


@pytest.mark.parametrize("name", sorted(set(THOUGHTS) & set(SOURCES) - ALTERNATING))
def test_the_thoughts_before_a_call_come_back(name: str) -> None:
    turn = calls(call("get_weather", '{"city": "Paris"}'), reasoning="Which city")
    text = written(template_of(name), ASKED, turn, RESULT, tools=[WEATHER], reasoning="on")
    assert ("Which city" in text) != (name in FORGETFUL)


# Templates that show the thoughts of answers before the last question, where the client sends them.
REMEMBERING = {
    "Bielik-11B-v3.0-Instruct",
    "ByteDance-Seed-OSS",
    "Cohere2MoE",
    "GLM-4.7-Flash",
    "Kimi-K3",
    "LFM2.5-8B-A1B",
    "MiniMax-M3",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Spark2.5",
    "deepseek-ai-DeepSeek-V4",
    "deepseek-ai-DeepSeek-V4-Flash-0731",
    "inclusionai-ling-3.0-flash",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "muse-glimmer",
    "poolside-Laguna-S-2.1",
    "poolside-Laguna-XS-2.1",
    "poolside-Laguna-XS.2",
    "tencent-Hy3",
    "upstage-Solar-Open-100B",
}


@pytest.mark.parametrize("name", sorted(set(THOUGHTS) & set(SOURCES)))
def test_the_thoughts_of_earlier_answers_come_back(name: str) -> None:
    answered = Message("assistant", "Blue", reasoning="Which city")
    text = written(template_of(name), ASKED, answered, Message("user", "And then?"), reasoning="on")
    assert ("Which city" in text) == (name in REMEMBERING)
