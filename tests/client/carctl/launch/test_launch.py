"""`carctl launch`: configurations of applications, merged into their files without a loss."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_client.carctl.launch.apps import APPS, AppTarget, path_of, quoted
from car_client.carctl.launch.command import shell_lines
from car_client.carctl.launch.merge import Unmergeable, merged, merged_text
from tests.client.carctl.command import carctl, carctl_on_terminal
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import model

TARGET = AppTarget("http://127.0.0.1:8321", "Qwen 3", 8192, tools=True, images=False)
WITH_FILES = {name: app for name, app in APPS.items() if app.file is not None}


def content(name: str) -> Any:
    """Return the configuration of an application for the target."""
    file = APPS[name].file
    assert file is not None
    return file.content(TARGET)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "codex",
            ["codex -c model_provider=card -c model_context_window=8192 -m 'Qwen 3'"],
        ),
        ("opencode", ["opencode --model card/'Qwen 3'"]),
        ("aider", ["export OPENAI_API_BASE=http://127.0.0.1:8321/v1", "aider --model openai/'Qwen 3'"]),
        (
            "claude",
            ['claude --settings "${CLAUDE_CONFIG_DIR:-$HOME/.claude}/card.json"'],
        ),
        ("open-webui", ["export OPENAI_API_BASE_URL=http://127.0.0.1:8321/v1", "open-webui serve"]),
        ("continue", ['echo "CARD_API_KEY=$(carctl http key continue)" >> ~/.continue/.env']),
        ("llm", ['llm keys set card --value "$(carctl http key llm)"', "llm -m card/'Qwen 3' 'What is card?'"]),
    ],
)
def test_the_lines_for_a_shell_have_url_model_and_context_and_read_the_key_when_they_run(
    name: str, lines: list[str]
) -> None:
    printed = list(shell_lines(name, APPS[name], TARGET))
    assert [line for line in printed if line in lines] == lines


@pytest.mark.parametrize("name", APPS)
def test_every_application_gets_a_key_of_its_own_that_no_file_holds(name: str) -> None:
    file = json.dumps(content(name)) if name in WITH_FILES else ""
    assert f"carctl http key {name}" in file + "\n".join(shell_lines(name, APPS[name], TARGET))
    assert "card-" not in file


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "codex",
            {
                "model_providers": {
                    "card": {
                        "name": "card",
                        "base_url": "http://127.0.0.1:8321/v1",
                        "env_key": "CARD_API_KEY",
                        "wire_api": "responses",
                    }
                }
            },
        ),
        (
            "aider",
            {
                "openai/Qwen 3": {
                    "max_input_tokens": 8192,
                    "max_output_tokens": 2048,
                    "max_tokens": 2048,
                    "litellm_provider": "openai",
                    "mode": "chat",
                }
            },
        ),
        (
            "vscode",
            [
                {
                    "name": "card",
                    "vendor": "customendpoint",
                    "apiType": "chat-completions",
                    "models": [
                        {
                            "id": "Qwen 3",
                            "name": "Qwen 3",
                            "url": "http://127.0.0.1:8321/v1/chat/completions",
                            "toolCalling": True,
                            "vision": False,
                            "maxInputTokens": 6144,
                            "maxOutputTokens": 2048,
                        }
                    ],
                }
            ],
        ),
    ],
)
def test_the_configuration_is_that_of_the_application(name: str, expected: object) -> None:
    assert content(name) == expected


@pytest.mark.parametrize("name", ["opencode", "zed", "continue", "llm"])
def test_the_other_files_have_url_model_and_abilities(name: str) -> None:
    text = merged_text(".json", "", content(name))
    assert "http://127.0.0.1:8321/v1" in text
    assert "Qwen 3" in text
    assert ("8192" in text) == (name != "llm")


@pytest.mark.parametrize(
    ("tools", "images", "abilities", "modalities", "legacy"),
    [
        (True, True, "[tool_use, image_input]", ["text", "image"], False),
        (True, False, "[tool_use]", ["text"], False),
        (False, False, "[]", ["text"], True),
    ],
)
def test_applications_that_do_not_find_out_a_models_abilities_have_them(
    *, tools: bool, images: bool, abilities: str, modalities: list[str], legacy: bool
) -> None:
    target = TARGET._replace(tools=tools, images=images)
    files = {name: app.file.content(target) for name, app in APPS.items() if app.file is not None}
    assert f"    capabilities: {abilities}\n" in files["continue"]
    model = files["opencode"]["provider"]["card"]["models"]["Qwen 3"]
    assert (model["tool_call"], model["modalities"]["input"]) == (tools, modalities)
    params = """export DEFAULT_MODEL_PARAMS='{"function_calling": "legacy"}'"""
    assert (params in shell_lines("open-webui", APPS["open-webui"], target)) == legacy


def test_files_are_where_the_applications_read_them() -> None:
    env = {"HOME": "/h", "XDG_CONFIG_HOME": "/x", "CODEX_HOME": "/c", "LLM_USER_PATH": "/l"}
    paths = {name: str(path_of(app, env)) for name, app in WITH_FILES.items()}
    assert paths["codex"] == "/c/config.toml"
    assert paths["opencode"] == "/x/opencode/opencode.json"
    assert paths["zed"] == "/h/.config/zed/settings.json"
    assert paths["llm"] == "/l/extra-openai-models.yaml"
    assert path_of(APPS["codex"], {"HOME": "/h"}) == Path("/h/.codex/config.toml")


# Merging.

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=4))
DATA = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=4), each), max_leaves=8
)
NAMED = [name for name in WITH_FILES if not isinstance(content(name), str)]


def is_kept(old: Any, new: Any, now: Any) -> bool:
    """Return whether all of `old` that `new` does not name is in `now`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(
            is_kept(value, new[key], now[key]) if key in new else now[key] == value for key, value in old.items()
        )
    return bool(now == new)


@given(others=st.dictionaries(st.text(max_size=5), DATA), name=st.sampled_from(["opencode", "zed", "aider"]), near=DATA)
def test_merging_into_json_keeps_all_other_members_and_twice_changes_nothing(
    others: dict[str, Any], name: str, near: Any
) -> None:
    new = content(name)
    root = next(iter(new))
    # Also a member beside the application's own, below the same root.
    old = {**others, root: {"other": near}}
    text = merged_text(".json", json.dumps(old), new)
    now = json.loads(text)
    assert is_kept(old, new, now)
    assert merged(now, new) == now
    assert merged_text(".json", text, new) == text


TOML = st.lists(
    st.sampled_from(
        [
            "[model_providers.other] # mine\nname = 'o'\n\n",
            "[profiles.fast]\nmodel = 'x' # quick\n",
            "[model_providers.card]\nname = 'old' # replaced\nrequest_max_retries = 9\n",
            "[[hooks]]\nrun = 'a'\n",
            "[mcp_servers.a]\ncommand = 'b'\nargs = [\n  'x', # one\n]\n",
        ]
    ),
    unique=True,
).map("".join)


@given(head=st.sampled_from(["", "# Mine.\nmodel = 'gpt'\n\n"]), tables=TOML)
def test_merging_into_toml_keeps_comments_and_all_other_members(head: str, tables: str) -> None:
    old, new = head + tables, content("codex")
    text = merged_text(".toml", old, new)
    assert tomllib.loads(text) == merged(tomllib.loads(old), new)
    assert is_kept(tomllib.loads(old), new, tomllib.loads(text))
    for comment in ("# Mine.", "# mine", "# quick", "# one"):
        assert (comment in old) == (comment in text)
    assert merged_text(".toml", text, new) == text


def test_entries_of_lists_are_merged_by_their_names_and_the_others_stay_in_their_order() -> None:
    old = [{"name": "a"}, {"name": "card", "apiKey": "kept", "models": [{"name": "old"}]}, "odd"]
    now = merged(old, content("vscode"))
    assert (now[0], now[2], len(now)) == ({"name": "a"}, "odd", 3)
    assert now[1]["apiKey"] == "kept"
    assert [model["name"] for model in now[1]["models"]] == ["old", "Qwen 3"]


@pytest.mark.parametrize(
    ("suffix", "old", "name", "why"),
    [
        (".json", '{"a": 1, // mine\n}', "zed", "plain JSON"),
        (".json", '{"a": 1, "a": 2}', "zed", "twice"),
        (".json", "[]", "zed", "a list where a dict belongs"),
        (".json", "{}", "vscode", "a dict where a list belongs"),
        (".json", '{"language_models": ["mine"]}', "zed", "a list where a dict belongs"),
        (".json", '{"a": "\\ud800"}', "zed", "surrogates"),
        (".json", '{"a": 1e999}', "zed", "Out of range"),
        (".toml", "model_providers = 'mine'", "codex", "a str where a dict belongs"),
        (".toml", "a = ", "codex", "valid TOML"),
        (".yaml", "- model_id: mine\n", "llm", "other content"),
    ],
)
def test_a_file_that_would_lose_something_is_refused(suffix: str, old: str, name: str, why: str) -> None:
    with pytest.raises(Unmergeable, match=why):
        merged_text(suffix, old, content(name))


def test_the_indent_of_a_file_and_its_letters_stay() -> None:
    text = merged_text(".json", '{\n\t"é": 1\n}\n', content("aider"))
    assert text.startswith('{\n\t"é": 1,\n\t"openai/Qwen 3": {\n\t\t"max_input_tokens"')


@pytest.mark.parametrize("name", ["plain", "it's", "a: b # c", '"', "{x}"])
def test_names_are_quoted_for_yaml(name: str) -> None:
    assert quoted(name) == "'" + name.replace("'", "''") + "'"


# The command.


def env(folder: Path) -> dict[str, str]:
    """Return the environment of a user with a configured port."""
    config = folder / "car" / "card.toml"
    config.parent.mkdir(exist_ok=True)
    config.write_text('[http]\nlisten = "127.0.0.1:8321"\n')
    return {"XDG_CONFIG_HOME": str(folder), "HOME": str(folder), "TERM": "dumb"}


def launch(daemon: FakeDaemon, folder: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run the command; return its exit code, output and errors."""
    done = carctl("--socket", daemon.path, "launch", *arguments, env=env(folder) | variables)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_write_shows_the_difference_and_keeps_a_backup(daemon: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "opencode" / "opencode.json"
    path.parent.mkdir()
    path.write_text('{"theme": "dark"}\n')
    code, shown, _ = launch(daemon, tmp_path, "opencode", "--write", "--yes")
    assert code == 0
    assert '-{"theme": "dark"}' in shown
    assert '+  "theme": "dark",' in shown
    assert json.loads(path.read_text()).keys() == {"theme", "provider"}
    assert path.with_name("opencode.json.bak").read_text() == '{"theme": "dark"}\n'
    code, shown, _ = launch(daemon, tmp_path, "opencode", "--write", "--yes")
    assert (code, "has the configuration already" in shown) == (0, True)
    assert path.with_name("opencode.json.bak").read_text() == '{"theme": "dark"}\n'


def test_without_a_terminal_and_a_yes_nothing_is_written(daemon: FakeDaemon, tmp_path: Path) -> None:
    code, _, errors = launch(daemon, tmp_path, "codex", "--write")
    assert (code, "give --yes" in errors) == (2, True)
    assert not (tmp_path / ".codex").exists()


@pytest.mark.parametrize(("answer", "written"), [(b"y\n", True), (b"\n", False)])
def test_on_a_terminal_the_command_waits_for_a_yes(
    daemon: FakeDaemon, tmp_path: Path, answer: bytes, written: bool
) -> None:
    with carctl_on_terminal("--socket", daemon.path, "launch", "codex", "--write", env=env(tmp_path)) as terminal:
        terminal.read_until(b"[y/N] ")
        terminal.type(answer)
        terminal.end()
        assert terminal.process.returncode == (0 if written else 1)
    assert (tmp_path / ".codex" / "config.toml").exists() == written


def test_a_file_with_comments_stays_and_the_error_names_the_way_by_hand(daemon: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / ".config" / "zed" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text("// mine\n{}\n")
    code, _, errors = launch(daemon, tmp_path, "zed", "--write", "--yes")
    assert (code, "add by hand the lines that carctl launch prints" in errors) == (1, True)
    assert path.read_text() == "// mine\n{}\n"


def test_a_pipe_in_the_place_of_the_file_is_not_read(daemon: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / ".codex" / "config.toml"
    path.parent.mkdir()
    os.mkfifo(path)
    code, _, errors = launch(daemon, tmp_path, "codex", "--write", "--yes")
    assert (code, "is not a file" in errors) == (1, True)


def test_an_unknown_model_and_a_door_without_a_port_are_refused(daemon: FakeDaemon, tmp_path: Path) -> None:
    code, _, errors = launch(daemon, tmp_path, "llm", "--model", "nope")
    assert (code, "unknown model 'nope'" in errors) == (2, True)
    done = carctl("--socket", daemon.path, "launch", "llm", env={"XDG_CONFIG_HOME": str(tmp_path / "empty")})
    assert (done.returncode, b"carctl http enable" in done.stderr) == (2, True)


def test_an_application_without_a_file_says_why_nothing_is_written(daemon: FakeDaemon, tmp_path: Path) -> None:
    for name, app in APPS.items():
        assert bool(app.unwritten) == (app.file is None)
        if app.file is None:
            code, shown, _ = launch(daemon, tmp_path, name, "--write", "--yes")
            assert (code, f"nothing to write: {name} has no file for it: {app.unwritten}" in shown) == (0, True)
            assert "nothing to write" not in launch(daemon, tmp_path, name)[1]


def test_the_output_says_what_to_take_care_of_and_when_the_model_lacks_tools(
    daemon: FakeDaemon, tmp_path: Path
) -> None:
    shown = launch(daemon, tmp_path, "claude")[1]
    assert f"# take care: {APPS['claude'].care}\n" in shown
    assert "# claude needs a model with tools, and guide has none: choose another one by --model\n" in shown
    shown = launch(daemon, tmp_path, "aider")[1]
    assert "take care" not in shown
    assert "needs a model with tools" not in shown


def test_claude_codes_own_settings_stay_and_its_key_is_read_when_it_starts(daemon: FakeDaemon, tmp_path: Path) -> None:
    folder = tmp_path / "claude"
    folder.mkdir()
    (folder / "settings.json").write_text('{"env": {"A": "b"}}')
    assert launch(daemon, tmp_path, "claude", "--write", "--yes", CLAUDE_CONFIG_DIR=str(folder))[0] == 0
    written = json.loads((folder / "card.json").read_text())
    assert written["apiKeyHelper"] == "carctl http key claude"
    # The count of tokens would change each prompt at its begin.
    assert written["env"]["CLAUDE_CODE_TOTAL_TOKENS_REMINDER"] == "off"
    assert written["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8321"
    assert written["env"]["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == str(model()["context_tokens"])
    assert (folder / "settings.json").read_text() == '{"env": {"A": "b"}}'
