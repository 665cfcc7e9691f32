"""`carctl models show`: one model as a page."""

from typing import Any

import msgspec
import pytest

from car_daemon.gguf.invalid import Flaw
from car_protocol.errors import RpcError
from car_protocol.hub import models_folder
from tests.client.carctl.command import carctl
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ESTIMATE, FILE, details, model

PAGE = """\
model          guide (default)
state          ready on cpu, 4 at once, 2,048 tokens each
file           /models/guide.gguf
holds          llama, 7,000,000,000 parameters, Q4_K_M, in 2 files
trained for    131,072 tokens; 32 layers of 4,096, of which 1 (MTP) not used, a vocabulary of 32,000
keeps          cells and states: a prompt goes on at marks
warnings       tensor type 77 is unknown to this version (1 of 9 tensors)
can            chat
tool_style     hermes
thinking_tags  <think>, </think>
takes          4.0 GiB weights, 128 MiB buffers, 1.0 GiB for each sequence of 8,192 tokens in f16
fits           2 sequences into 16.0 GiB free, 10 where `sequences` requests them; 4 × 32,768 or 16 × 8,192

metadata
  general.name                  A model␇ with a long name with a long name with…
  llama.rope.freq_base          500000
  tokenizer.ggml.tokens         32,000 values
  tokenizer.ggml.add_bos_token  true

chat template
  {% for message in messages %}
  ␛[31m{{ message }}
  {% endfor %}
"""


def shown(daemon: FakeDaemon, answer: dict[str, Any], *more: str, **env: str) -> str:
    """Return what is printed of an answer."""
    daemon.answers["models/show"] = answer
    done = carctl("--socket", daemon.path, "models", "show", "guide", *more, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def line(text: str, name: str) -> str:
    """Return what stands beside a word."""
    (found,) = [each for each in text.splitlines() if each.split("  ")[0] == name]
    return found.removeprefix(name).strip()


def test_a_model_is_a_page(daemon: FakeDaemon) -> None:
    assert shown(daemon, details()) == PAGE
    assert daemon.params("models/show") == {"model": "guide"}


def test_as_json_it_is_the_result_as_it_came(daemon: FakeDaemon) -> None:
    assert msgspec.json.decode(shown(daemon, details(), "--json")) == details()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sequences": 0, "most_sequences": 0}, "not into 16.0 GiB free"),
        ({"sequences": 10}, "10 sequences into 16.0 GiB free; 4 × 32,768 or 16 × 8,192"),
        (
            {"sequences": None, "most_sequences": None},
            "as far as the GPU's memory goes, which is read when the model is loaded (16.0 GiB free on the host)",
        ),
    ],
)
def test_what_fits_is_said(daemon: FakeDaemon, changes: dict[str, Any], said: str) -> None:
    assert line(shown(daemon, details(estimate=ESTIMATE | changes)), "fits") == said


def test_what_a_loaded_model_has_of_its_gpus_is_shown_with_the_plan(daemon: FakeDaemon) -> None:
    sizes = {"planned_bytes": 400 << 20, "taken_bytes": 404 << 20, "free_bytes": 620 << 20, "total_bytes": 1 << 30}
    devices = [{"name": f"CUDA{number}", "layers": 16, "pressure": "none", **sizes} for number in range(2)]
    each = "16 layers, 400 MiB planned, 404 MiB taken (+1.0%), 620 MiB of 1024 MiB free"
    assert line(shown(daemon, details(devices=devices)), "on GPUs") == f"CUDA0: {each}; CUDA1: {each}"
    on_host = line(shown(daemon, details(devices=devices[:1], host_experts=9)), "on GPUs")
    assert on_host == f"CUDA0: {each}; experts of 9 layers on the host"


def test_a_file_that_says_little_is_shown_with_what_it_says(daemon: FakeDaemon) -> None:
    nothing = dict.fromkeys(("architecture", "file_type", "vocabulary", "chat_template"))
    little: dict[str, Any] = {**nothing, "memory": None, "unused_layers": 0, "metadata": {}, "parts": 1}
    page = shown(daemon, details(file=FILE | little))
    assert line(page, "holds") == "an unnamed architecture, 7,000,000,000 parameters, unknown format"
    assert line(page, "trained for") == "131,072 tokens; 32 layers of 4,096"
    assert "\nkeeps " not in page
    assert page.endswith("\n\nmetadata\n\nno chat template\n")


def test_a_file_that_was_not_downloaded_is_shown_with_the_command_for_it(daemon: FakeDaemon) -> None:
    path = models_folder({"XDG_DATA_HOME": "/data"}) / "owner/repo/m.gguf"
    missing = model() | {"path": str(path), "size_bytes": None, "state": "failed", "reason": "no"}
    page = shown(daemon, {"model": missing, "why": "the file has not been downloaded"}, XDG_DATA_HOME="/data")
    assert line(page, "state") == "failed, no"
    assert line(page, "but") == "the file has not been downloaded; run: carctl models pull hf:owner/repo/m.gguf"
    assert "metadata" not in page


@pytest.mark.parametrize(
    ("size", "advice"), [(None, "correct its path"), (7, "check that /models/guide.gguf is a complete GGUF file")]
)
def test_another_file_that_cannot_be_used_is_shown_with_what_to_do(
    daemon: FakeDaemon, size: int | None, advice: str
) -> None:
    page = shown(daemon, {"model": model() | {"size_bytes": size}, "why": "a fixed text"})
    assert line(page, "but") == f"a fixed text; {advice}"


ANOTHER = "; use another model: `carctl models suggest` names some"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [*dict.fromkeys((Flaw.DIFFUSION, Flaw.TRANSLATES, Flaw.DRAFTS, Flaw.SOUNDS), ANOTHER).items(), (Flaw.ADAPTER, "")],
)
def test_the_advice_about_a_whole_file_follows_from_the_reason(daemon: FakeDaemon, reason: Flaw, advice: str) -> None:
    page = shown(daemon, {"model": model(), "why": reason.value})
    assert line(page, "but") == reason.value + advice


def test_an_older_daemon_is_told_from_a_model_that_is_not_there(daemon: FakeDaemon) -> None:
    daemon.answers["models/show"] = RpcError("method_not_found")
    done = carctl("--socket", daemon.path, "models", "show", "guide")
    assert done.returncode == 1
    assert done.stderr.endswith(b"; the daemon may be older than this command\n")
