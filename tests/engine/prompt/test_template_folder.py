"""Every template of llama.cpp's folder is of a known family, or its tools are refused by name."""

import pytest

from car_base.ipc.refusal import Refusal
from car_base.ipc.types import ToolStyle
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.conversation import Conversations
from car_engine.prompt.template import ChatTemplate
from car_protocol.conversation import Message, ToolCall
from tests.engine.output.recorded import ARGUMENTS
from tests.engine.prompt.chats import calls, chat, opened
from tests.engine.prompt.template_folder import MISSING, template_sources
from tests.engine.prompt.test_tool_round_trip import LIST_ALL, LOOK_UP, TOOLS, VOCABULARY, read_back, written

SOURCES = template_sources()
ASKED = Message("user", "Look up")

STYLES: dict[str, ToolStyle] = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed_oss",
    "Cohere2MoE": "command_r7b",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command_r",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command_r7b",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "GigaChat3-10B-A1.8B": "gigachat",
    "GigaChat3.1-10B-A1.8B": "gigachat",
    "Kimi-K2-Instruct": "kimi_k2",
    "Kimi-K2-Thinking": "kimi_k2",
    "Kimi-K3": "kimi_k3",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "minimax_m1",
    "MiniMax-M2": "minimax_m2",
    "MiniMax-M3": "minimax_m3",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm",
    "StepFun3.5-Flash": "qwen3_coder",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v3_2",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek_v4",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "fireworks-ai-llama-3-firefunction-v2": "firefunction",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "google-gemma-4-31B-it": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm",
    "llama-cpp-deepseek-r1": "deepseek_r1",
    "llm-jp-llm-jp-4.1-8b-thinking": "gpt_oss",
    "meetkai-functionary-medium-v3.1": "functionary_v3_1",
    "meetkai-functionary-medium-v3.2": "functionary_v3_2",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "moonshotai-Kimi-K2": "kimi_k2",
    "muse-glimmer": "muse",
    "openai-gpt-oss-120b": "gpt_oss",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "poolside-Laguna-S-2.1": "glm",
    "poolside-Laguna-XS-2.1": "glm",
    "poolside-Laguna-XS.2": "glm",
    "tencent-Hy3": "hunyuan",
    "unsloth-Apriel-1.5": "apriel",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
    "upstage-Solar-Open-100B": "solar",
}
# Templates that do not read `tools`.
TOOLLESS = {
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-2-2b-it",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
# Templates that write a turn's calls in part: none of them, or the first alone.
SILENT = {"LFM2-8B-A1B", "LFM2.5-Instruct", "NVIDIA-Nemotron-Nano-v2", "ibm-granite-granite-3.3-2B-Instruct"}
FIRST = {"GigaChat3-10B-A1.8B", "GigaChat3.1-10B-A1.8B", "openai-gpt-oss-120b"}


@pytest.mark.skipif(not SOURCES, reason=MISSING)
def test_all_templates_of_the_folder_are_listed() -> None:
    assert set(SOURCES) == set(STYLES) | TOOLLESS


@pytest.mark.parametrize("name", SOURCES)
def test_a_template_is_of_its_family_or_its_tools_are_refused(name: str) -> None:
    template = opened(SOURCES[name], VOCABULARY)
    if name in STYLES:
        assert (template.format.tools, "tools" in template.abilities) == (STYLES[name], True)
        assert template.takes_tools
        return
    conversations = Conversations(template, ContextLimit(100_000, 8))
    with pytest.raises(Refusal) as refused:
        conversations.prompt(chat(ASKED, tools=TOOLS), None)
    assert (refused.value.reason, refused.value.data["lacks"]) == ("model_unavailable", "tools")
    assert "tools" not in template.abilities


@pytest.mark.parametrize("name", sorted(set(SOURCES) - TOOLLESS - SILENT))
def test_the_calls_that_a_template_writes_are_read_back(name: str) -> None:
    template = opened(SOURCES[name], VOCABULARY)
    first = name in FIRST or "meta-llama" in name
    made = (LOOK_UP,) if first else (LOOK_UP, LIST_ALL)
    found, text = read_back(STYLES[name], answer_of(template, made))
    assert found == [("look_up", ARGUMENTS), ("list_all", {})][: len(made)]
    assert "look_up" not in text


def answer_of(template: ChatTemplate, made: tuple[ToolCall, ...]) -> str:
    """Return a turn with these calls: what follows the prompt, or the user's text where the prompt differs."""
    whole = written(template, ASKED, calls(*made))
    prompts = (written(template, ASKED, template_args=args) for args in ({}, {"add_generation_prompt": False}))
    after_user = whole[whole.rindex(ASKED.text) + len(ASKED.text) :]
    return next((whole.removeprefix(prompt) for prompt in prompts if whole.startswith(prompt)), after_user)
