"""Models of the hub: named in the configuration, downloaded by carctl, served by the daemon that was there before."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from car_base import guide
from car_protocol.hub import models_folder
from tests.client.carctl.command import carctl
from tests.client.carctl.hub.fake_hub import FakeHub
from tests.e2e.support import BIN, KNOWN, PATIENCE_S, Daemon, greedy, running

pytestmark = pytest.mark.slow

NAME = "owner/repo/answers.gguf"
CONFIG = f'[models.mine]\nhf = "{NAME}"\n'
WHY = "the file has not been downloaded"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A hub that has the built-in model."""
    hub = FakeHub()
    hub.files[NAME] = guide.PATH.read_bytes()
    with hub.serving():
        yield hub


def say(daemon: Daemon, *arguments: str, **env: str) -> str:
    """Run carctl for the daemon's user; return what it printed."""
    folder = daemon.path.parent
    done = carctl("--socket", daemon.path, *arguments, env={"XDG_DATA_HOME": str(folder), **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_a_model_is_served_once_it_was_downloaded_without_a_restart(folder: Path, hub: FakeHub) -> None:
    config = folder / "card.toml"
    config.write_text(CONFIG)
    place = models_folder({"XDG_DATA_HOME": str(folder)}) / NAME
    starting = running(folder, "--config", str(config), XDG_DATA_HOME=str(folder))
    with starting as daemon, daemon.connect() as client:
        listed = client.result("models/list")["models"][1]
        assert (listed["name"], listed["state"], listed["path"]) == ("mine", "unloaded", str(place))
        for method, params in (("infer", greedy(KNOWN[0], model="mine")), ("models/load", {"model": "mine"})):
            data = client.call(method, params)["error"]["data"]
            assert (data["reason"], data["why"]) == ("model_unavailable", WHY)
        assert hub.requests == []
        assert say(daemon, "models", "pull", f"hf:{NAME}", HF_ENDPOINT=hub.url) == f"{place}\n"
        assert client.result("infer", greedy(KNOWN[0], model="mine"))["text"] == KNOWN[0].answer
    # Once the daemon has ended every event is written.
    assert f"run='carctl models pull hf:{NAME}'" in daemon.log.read_text()


def test_a_model_is_shown_with_the_command_that_downloads_it_and_then_with_what_it_holds(
    folder: Path, hub: FakeHub
) -> None:
    config = folder / "card.toml"
    config.write_text(CONFIG)
    with running(folder, "--config", str(config), XDG_DATA_HOME=str(folder)) as daemon:
        daemon.ready()
        page = say(daemon, "models", "show", "mine")
        assert f"{WHY}; run: carctl models pull hf:{NAME}\n" in page
        say(daemon, "models", "pull", f"hf:{NAME}", HF_ENDPOINT=hub.url)
        page = say(daemon, "models", "show", "mine")
        assert "llama, 984,192 parameters, Q8_0\n" in page
        assert "general.author                          the card project\n" in page
        assert "\nchat template\n  {{- bos_token }}\n" in page
        unloaded, ready = (json.loads(say(daemon, "models", "show", name, "--json")) for name in ("mine", "guide"))
        assert unloaded["model"]["state"] == "unloaded"
        assert unloaded["file"] == ready["file"]
        with daemon.connect() as client:
            declared = client.result("inference/capacity")["inputs"]["kv_bytes_per_sequence"]
        assert unloaded["estimate"]["kv_bytes_per_sequence"] == declared
        assert ready["estimate"]["kv_bytes_per_sequence"] == declared


def test_a_default_model_that_was_removed_is_served_again_once_it_was_downloaded_again(
    folder: Path, hub: FakeHub
) -> None:
    pulled = carctl("models", "pull", f"hf:{NAME}", env={"XDG_DATA_HOME": str(folder), "HF_ENDPOINT": hub.url})
    assert pulled.returncode == 0
    with running(folder, "--model", f"hf:{NAME}", XDG_DATA_HOME=str(folder)) as daemon, daemon.connect() as client:
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        removal = ("--socket", daemon.path, "models", "rm", "answers", "--yes")
        refused = carctl(*removal, env={"XDG_DATA_HOME": str(folder)})
        assert refused.returncode == 1
        assert b"first run carctl models unload answers" in refused.stderr
        say(daemon, "models", "unload", "answers")
        say(daemon, "models", "rm", "answers", "--yes")
        assert client.call("infer", greedy(KNOWN[0]))["error"]["data"]["why"] == WHY
        say(daemon, "models", "pull", f"hf:{NAME}", HF_ENDPOINT=hub.url)
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer


def test_a_default_model_that_was_never_downloaded_ends_the_start_with_the_command_for_it(folder: Path) -> None:
    ended = subprocess.run(
        [BIN / "card", "--socket", folder / "s", "--model", f"hf:{NAME}"],
        env={"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    path = models_folder({"XDG_DATA_HOME": str(folder)}) / NAME
    line = f"card: there is no model file {path}: run: carctl models pull hf:{NAME}\n"
    assert (ended.returncode, ended.stderr) == (69, line)


def test_a_model_that_is_named_badly_is_wrong_usage(folder: Path) -> None:
    command = [str(BIN / "card"), "--model", "hf:owner/answers.gguf"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 64
    assert "'owner/answers.gguf' is not owner/repo/path/file.gguf" in ended.stderr
