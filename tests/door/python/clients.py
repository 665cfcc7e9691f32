"""Libraries on top of OpenAI's client, unmodified, each in an environment with all of them: see `make clients`.

Run as `clients.py LIBRARY`: it prints what the door answered. One door is in front of a real daemon, whose model takes
no tools; the other one's daemon is scripted: its first answer calls Weather.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel

URL, KEY = os.environ["URL_OF_DOOR"] + "/v1", os.environ["KEY_OF_DOOR"]
SCRIPTED_URL, SCRIPTED_KEY = os.environ["URL_OF_SCRIPTED"] + "/v1", os.environ["KEY_OF_SCRIPTED"]
QUESTION = os.environ["QUESTION"]
MODEL = "guide"
MESSAGES = [{"role": "user", "content": QUESTION}]


class Figure(BaseModel):
    """A figure that is seven."""

    figure: Literal["seven"]


class Weather(BaseModel):
    """The weather of a place."""

    place: str


def langchain() -> dict[str, Any]:
    """LangChain.

    Its asynchronous client is one for all event loops of a process. With any server that keeps connections, the first
    call of a second loop may fail with "Event loop is closed": so do tests of langchain-tests with a loop each, unless
    `asyncio_default_test_loop_scope` is `session`.
    """
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, temperature=0, max_retries=0)
    scripted = ChatOpenAI(model=MODEL, base_url=SCRIPTED_URL, api_key=SCRIPTED_KEY, max_retries=0)
    (call,) = scripted.bind_tools([Weather]).invoke("Weather?").tool_calls
    return {
        "chat": model.invoke(QUESTION).content,
        "stream": [str(chunk.content) for chunk in model.stream(QUESTION)],
        "schema": model.with_structured_output(Figure, method="json_schema").invoke("Seven?").figure,
        "tool": [call["name"], call["args"]],
    }


def litellm() -> dict[str, Any]:
    """LiteLLM."""
    from litellm import completion

    def ask(messages: Any = MESSAGES, **more: Any) -> Any:
        usual = {"api_base": URL, "api_key": KEY, "temperature": 0, "max_retries": 0}
        return completion(model=f"openai/{MODEL}", messages=messages, **{**usual, **more})

    function = {"name": "Weather", "parameters": Weather.model_json_schema()}
    tools = [{"type": "function", "function": function}]
    scripted = ask(api_base=SCRIPTED_URL, api_key=SCRIPTED_KEY, tools=tools)
    (call,) = scripted.choices[0].message.tool_calls
    return {
        "chat": ask().choices[0].message.content,
        "stream": [chunk.choices[0].delta.content or "" for chunk in ask(stream=True)],
        "schema": json.loads(ask(response_format=Figure).choices[0].message.content)["figure"],
        "tool": [call.function.name, json.loads(call.function.arguments)],
    }


def instructor() -> dict[str, Any]:
    """Instructor, whose answers are objects: its texts come without a model of them."""
    from instructor import Mode, from_openai
    from openai import OpenAI

    inner = OpenAI(base_url=URL, api_key=KEY, max_retries=0)
    scripted = from_openai(OpenAI(base_url=SCRIPTED_URL, api_key=SCRIPTED_KEY, max_retries=0), mode=Mode.TOOLS)
    create = from_openai(inner, mode=Mode.JSON_SCHEMA).chat.completions.create
    called = scripted.chat.completions.create(model=MODEL, messages=MESSAGES, response_model=Weather, max_retries=0)
    chat = create(model=MODEL, messages=MESSAGES, response_model=None, temperature=0)
    stream = create(model=MODEL, messages=MESSAGES, response_model=None, temperature=0, stream=True)
    return {
        "chat": chat.choices[0].message.content,
        "stream": [chunk.choices[0].delta.content or "" for chunk in stream],
        "schema": create(model=MODEL, messages=MESSAGES, response_model=Figure, max_retries=0).figure,
        "tool": [type(called).__name__, called.model_dump()],
    }


def pydantic_ai() -> dict[str, Any]:
    """Pydantic AI, whose agent calls the tool and sends its result."""
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def model(url: str, key: str) -> Any:
        return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key=key))

    real, calls = model(URL, KEY), []
    scripted: Any = Agent(model(SCRIPTED_URL, SCRIPTED_KEY))

    @scripted.tool_plain(name="Weather")
    def weather(place: str) -> str:
        calls.append(["Weather", {"place": place}])
        return "sunny"

    async def stream() -> list[str]:
        async with Agent(real, model_settings={"temperature": 0}).run_stream(QUESTION) as streamed:
            return [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]

    async def run() -> dict[str, Any]:
        assert (await scripted.run("Weather?")).output == "Hello"
        seven: Any = await Agent(real, output_type=NativeOutput(Figure)).run("Seven?")
        return {
            "chat": (await Agent(real, model_settings={"temperature": 0}).run(QUESTION)).output,
            "stream": await stream(),
            "schema": seven.output.figure,
            "tool": calls[0],
        }

    return asyncio.run(run())


def llama_index() -> dict[str, Any]:
    """LlamaIndex."""
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    def model(url: str, key: str, **more: Any) -> Any:
        return OpenAILike(model=MODEL, api_base=url, api_key=key, is_chat_model=True, max_retries=0, **more)

    real = model(URL, KEY, temperature=0, should_use_structured_outputs=True)
    scripted = model(SCRIPTED_URL, SCRIPTED_KEY, is_function_calling_model=True)
    tool = FunctionTool.from_defaults(fn=lambda place: "sunny", name="Weather", description="The weather.")
    (call,) = scripted.get_tool_calls_from_response(scripted.chat_with_tools([tool], user_msg="Weather?"))
    message = ChatMessage(role="user", content=QUESTION)
    return {
        "chat": real.chat([message]).message.content,
        "stream": [chunk.delta or "" for chunk in real.stream_chat([message])],
        "schema": real.as_structured_llm(Figure).chat([message]).raw.figure,
        "tool": [call.tool_name, call.tool_kwargs],
    }


LIBRARIES: dict[str, Callable[[], dict[str, Any]]] = {
    each.__name__: each for each in (langchain, litellm, instructor, pydantic_ai, llama_index)
}

if __name__ == "__main__":
    print(json.dumps(LIBRARIES[sys.argv[1]]()))
