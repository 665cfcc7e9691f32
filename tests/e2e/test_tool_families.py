"""Tool calls of several families through the socket: a grammar forces the text that such a model writes."""

import json
from collections.abc import Iterator

import jsonschema
import pytest

from tests.e2e.support import CANARY, Json, RawClient, configured, conversation, running
from tests.e2e.test_tools import called
from tests.engine.output.recorded import ARGUMENTS, FUNCTIONS, LOOK_UP, RECORDED, Recorded
from tests.engine.prompt.family_templates import TEMPLATES
from tools.random_model import generate

pytestmark = pytest.mark.slow
STYLES = ("gpt_oss", "qwen3_coder", "glm", "deepseek_v3_1", "gemma4", "kimi_k2", "mistral", "llama4")
# The grammar of an answer does not reach into thoughts.
ANSWERS = [next(each for each in RECORDED if each.style == style and not each.thought) for style in STYLES]
TOOLS = [
    {
        "type": "function",
        "function": {"name": each.name, "description": each.description, "parameters": each.parameters},
    }
    for each in FUNCTIONS
]
SCHEMAS = {function.name: function.parameters for function in FUNCTIONS}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    """A client of a daemon with a model of each family: the same weights, each with the family's template."""
    folder = tmp_path_factory.mktemp("card", numbered=True)
    generate(folder / "model.gguf", "tiny", "q8_0")
    tables = [f'default_model = "{STYLES[0]}"']
    for answer in ANSWERS:
        place = folder / f"{answer.style}.jinja"
        prompted = f"{{% if add_generation_prompt %}}{answer.begun}{{% endif %}}"
        place.write_text(TEMPLATES[answer.style] + prompted, encoding="utf-8")
        tables.append(
            f'[models.{answer.style}]\npath = "{folder}/model.gguf"\nsequences = 2\ncontext_tokens = 4096\n'
            f'chat_template = "{place}"'
        )
    with running(folder, *configured(folder, "\n".join(tables))) as daemon, daemon.connect() as client:
        yield client


def forced(answer: Recorded, **more: object) -> Json:
    """Return params under which the model of a family writes this answer and nothing else."""
    grammar = f"root ::= {json.dumps(answer.text, ensure_ascii=False)}"
    asked: Json = {"model": answer.style, "messages": conversation(CANARY), "tools": TOOLS, "temperature": 0}
    return {**asked, "grammar": grammar, **more}


def named(answer: Recorded) -> str:
    return answer.style


@pytest.mark.parametrize("answer", ANSWERS, ids=named)
def test_the_calls_of_a_family_are_apart_from_text_and_thoughts(client: RawClient, answer: Recorded) -> None:
    whole = client.result("infer", forced(answer))
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in whole["tool_calls"]] == [
        ("look_up", ARGUMENTS),
        ("list_all", {}),
    ]
    assert not any("invalid" in call for call in whole["tool_calls"])
    assert (whole["text"].strip(), whole.get("reasoning", "")) == (answer.said, answer.thought)
    chunks, _ = client.stream(forced(answer))
    assert [call["function"] for call in called(chunks)] == [call["function"] for call in whole["tool_calls"]]
    assert "".join(chunk.get("text", "") for chunk in chunks) == whole["text"]


@pytest.mark.parametrize("answer", ANSWERS, ids=named)
def test_an_answer_that_is_cut_within_a_call_has_a_part_of_it_and_no_marker(
    client: RawClient, answer: Recorded
) -> None:
    tokens = client.result("infer", forced(answer, return_tokens=True))["usage"]["completion_tokens"]
    for share in (0.2, 0.4, 0.7):
        cut = client.result("infer", forced(answer, max_tokens=int(tokens * share)))
        assert cut["finish_reason"] == "length"
        assert answer.said.startswith(cut["text"].strip())
        for call in cut.get("tool_calls", []):
            assert call["function"]["name"] in SCHEMAS


@pytest.mark.parametrize("answer", ANSWERS, ids=named)
def test_a_call_that_is_required_is_written_in_the_form_of_the_family(client: RawClient, answer: Recorded) -> None:
    params = forced(answer, tool_choice={"name": LOOK_UP.name}, seed=3, temperature=1, max_tokens=600)
    del params["grammar"]
    made = client.result("infer", params)
    (call,) = made["tool_calls"]
    assert (call["function"]["name"], made["text"]) == (LOOK_UP.name, "")
    if made["finish_reason"] == "stop":
        jsonschema.validate(json.loads(call["function"]["arguments"]), LOOK_UP.parameters)


def test_models_list_has_the_families_of_tools(client: RawClient) -> None:
    listed = client.result("models/list")["models"]
    assert {model["name"] for model in listed if "tools" in model["can"]} == set(STYLES)
    shown = client.result("models/show", {"model": "glm"})
    assert shown["file"]["tool_style"] == "glm"
