"""What models can: the same by the header before a load and by the engine after it."""

from collections.abc import Callable
from pathlib import Path

from car_base.guide import PATH
from tests.e2e.support import Daemon, configured
from tools.random_model import generate
from tools.random_models.embedding import generate_embedding

Start = Callable[..., Daemon]
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{{ '<tool_call>' if tools }}"
    "{% for message in messages %}{{ message.content.split('</think>')[-1] }}{% endfor %}"
)
FILL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


def test_models_that_are_not_loaded_have_the_abilities_of_loaded_ones(start: Start, folder: Path) -> None:
    generate(folder / "agent.gguf", "tiny", "q8_0", template=TEMPLATE, extra_tokens=dict.fromkeys(FILL, True))
    generate_embedding(folder / "vectors.gguf")
    names = ("agent", "vectors")
    tables = "".join(f'[models.{name}]\npath = "{folder}/{name}.gguf"\n' for name in names)
    daemon = start(*configured(folder, f'default_model = "mine"\n[models.mine]\npath = "{PATH}"\n{tables}'))
    with daemon.connect() as client:

        def can() -> dict[str, list[str]]:
            listed = client.result("models/list")["models"]
            return {model["name"]: model["can"] for model in listed if model["name"] != "guide"}

        before = can()
        assert before["agent"] == ["generate", "chat", "tools", "thinking", "fill", "decide", "embed"]
        assert before["vectors"] == ["embed"]
        assert client.result("models/show", {"model": "agent"})["model"]["can"] == before["agent"]
        for name in (*names, "mine"):
            client.result("models/load", {"model": name})
        assert can() == before
