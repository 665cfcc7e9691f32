"""The applications: for each its file, its environment and its start, as functions of the model in use."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

# Applications read the key from here, so that no configuration file holds it.
KEY_VARIABLE = "CARD_API_KEY"
# Of the context, for applications that have to be given a limit of answers.
_ANSWER_SHARE = 4


class AppTarget(NamedTuple):
    """A model behind the door at `url`, without a path; `context` is in tokens."""

    url: str
    model: str
    context: int
    tools: bool
    images: bool

    @property
    def api(self) -> str:
        """The base URL of OpenAI's dialect."""
        return f"{self.url}/v1"

    @property
    def answer(self) -> int:
        """The longest answer, in tokens."""
        return self.context // _ANSWER_SHARE


class AppFile(NamedTuple):
    """A file of an application; a `content` of text (YAML) is written whole, data is merged into JSON or TOML."""

    path: Callable[[Mapping[str, str], Path], Path]
    content: Callable[[AppTarget], Any]


class LaunchApp(NamedTuple):
    """An application; `key` names the variable that its shell gets the key in, `start` are the commands after it.

    `unwritten` says of an application without a file why there is none. `care` is a sentence for the user, and `tried`
    says with which version what was seen to work. An application with `tools` works with such models alone.
    """

    file: AppFile | None
    variables: Callable[[AppTarget], dict[str, str]]
    start: Callable[[AppTarget], list[str]]
    key: str | None = KEY_VARIABLE
    unwritten: str = ""
    care: str = ""
    tried: str = ""
    tools: bool = False


def _none(_target: AppTarget) -> dict[str, str]:
    return {}


def _config(env: Mapping[str, str], home: Path) -> Path:
    return Path(env.get("XDG_CONFIG_HOME") or home / ".config")


def _application(env: Mapping[str, str], home: Path) -> Path:
    """Return the folder of applications that follow the platform's habit."""
    return home / "Library" / "Application Support" if sys.platform == "darwin" else _config(env, home)


def _codex(target: AppTarget) -> Any:
    provider = {
        "name": "card",
        "base_url": target.api,
        "env_key": KEY_VARIABLE,
        "wire_api": "responses",
    }
    return {"model_providers": {"card": provider}}


def _opencode(target: AppTarget) -> Any:
    limit = {"context": target.context, "output": target.answer}
    options = {"baseURL": target.api, "apiKey": f"{{env:{KEY_VARIABLE}}}"}
    # Without its modalities a model is taken for one that reads text alone.
    modalities = {"input": ["text", "image"] if target.images else ["text"], "output": ["text"]}
    model = {"name": target.model, "tool_call": target.tools, "modalities": modalities, "limit": limit}
    models = {target.model: model}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "card", "options": options, "models": models}
    return {"provider": {"card": provider}}


def _aider(target: AppTarget) -> Any:
    limits = {"max_input_tokens": target.context, "max_output_tokens": target.answer, "max_tokens": target.answer}
    return {f"openai/{target.model}": {**limits, "litellm_provider": "openai", "mode": "chat"}}


def _zed(target: AppTarget) -> Any:
    can = {"tools": target.tools, "images": target.images, "parallel_tool_calls": False, "prompt_cache_key": True}
    model = {"name": target.model, "display_name": target.model, "max_tokens": target.context, "capabilities": can}
    return {"language_models": {"openai_compatible": {"card": {"api_url": target.api, "available_models": [model]}}}}


def _vscode(target: AppTarget) -> Any:
    model = {
        "id": target.model,
        "name": target.model,
        "url": f"{target.api}/chat/completions",
        "toolCalling": target.tools,
        "vision": target.images,
        "maxInputTokens": target.context - target.answer,
        "maxOutputTokens": target.answer,
    }
    return [{"name": "card", "vendor": "customendpoint", "apiType": "chat-completions", "models": [model]}]


def _continue(target: AppTarget) -> str:
    # Without them Continue derives a model's abilities from its name.
    abilities = {"tool_use": target.tools, "image_input": target.images}
    lines = [
        "name: card",
        "version: 1.0.0",
        "schema: v1",
        "models:",
        f"  - name: {quoted(target.model)}",
        "    provider: openai",
        f"    model: {quoted(target.model)}",
        f"    apiBase: {target.api}",
        f"    apiKey: ${{{{ secrets.{KEY_VARIABLE} }}}}",
        f"    capabilities: [{', '.join(name for name, present in abilities.items() if present)}]",
        "    roles: [chat, edit, apply]",
        "    defaultCompletionOptions:",
        f"      contextLength: {target.context}",
        f"      maxTokens: {target.answer}",
    ]
    return "\n".join(lines) + "\n"


def _llm(target: AppTarget) -> str:
    lines = [
        f"- model_id: {quoted(f'card/{target.model}')}",
        f"  model_name: {quoted(target.model)}",
        f"  api_base: {target.api}",
        "  api_key_name: card",
        f"  supports_tools: {str(target.tools).lower()}",
        f"  vision: {str(target.images).lower()}",
    ]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """Return a text as a YAML scalar: single quotes take all characters of a line."""
    return "'" + text.replace("'", "''") + "'"


def _claude(target: AppTarget) -> Any:
    """Return settings for `--settings`: the user's own keep naming the service that Claude Code uses by itself."""
    variables = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_MODEL": target.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model,
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(target.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.answer),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # A count of tokens in each prompt: no prefix after it would be cached.
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
    }
    return {"env": variables, "apiKeyHelper": "carctl http key claude"}


def _claude_path(env: Mapping[str, str], home: Path) -> Path:
    return Path(env.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "card.json"


def _open_webui(target: AppTarget) -> dict[str, str]:
    variables = {"OPENAI_API_BASE_URL": target.api, "ENABLE_OLLAMA_API": "false", "DEFAULT_MODELS": target.model}
    # Its chats offer tools of its own to all models; a model without tools would be refused.
    return variables if target.tools else variables | {"DEFAULT_MODEL_PARAMS": '{"function_calling": "legacy"}'}


def _codex_path(env: Mapping[str, str], home: Path) -> Path:
    return Path(env.get("CODEX_HOME") or home / ".codex") / "config.toml"


def _llm_path(env: Mapping[str, str], home: Path) -> Path:
    folder = env.get("LLM_USER_PATH") or _application(env, home) / "io.datasette.llm"
    return Path(folder) / "extra-openai-models.yaml"


# Arguments of shell commands are quoted by the printer, if a name needs it: `{model}` stands for the name.
APPS: dict[str, LaunchApp] = {
    "codex": LaunchApp(
        AppFile(_codex_path, _codex),
        _none,
        lambda t: [f"codex -c model_provider=card -c model_context_window={t.context} -m {{model}}"],
        care="your default model stays",
        tried="0.169: its requests, its reading of errors",
        tools=True,
    ),
    "claude": LaunchApp(
        AppFile(_claude_path, _claude),
        _none,
        lambda _: ['claude --settings "${CLAUDE_CONFIG_DIR:-$HOME/.claude}/card.json"'],
        None,
        care="its 24 tools need more than 8,192 tokens of context",
        tried="2.1.197: answers, a call of `Bash`",
        tools=True,
    ),
    "opencode": LaunchApp(
        AppFile(lambda env, home: _config(env, home) / "opencode" / "opencode.json", _opencode),
        _none,
        lambda _: ["opencode --model card/{model}"],
        tried="1.18.33: answers, a call of `bash`",
        tools=True,
    ),
    "aider": LaunchApp(
        AppFile(lambda _, home: home / ".aider.model.metadata.json", _aider),
        lambda t: {"OPENAI_API_BASE": t.api},
        lambda _: ["aider --model openai/{model}"],
        "OPENAI_API_KEY",
        tried="0.86: a question, an edit",
    ),
    "zed": LaunchApp(
        AppFile(lambda _, home: home / ".config" / "zed" / "settings.json", _zed),
        _none,
        lambda _: ["zed"],
        care="start Zed from the shell with `CARD_API_KEY`",
    ),
    "open-webui": LaunchApp(
        None,
        _open_webui,
        lambda _: ["open-webui serve"],
        "OPENAI_API_KEY",
        "it takes its connections from the variables of its first start, and then from its database",
        care="for a model without tools its setting Function Calling has to be Legacy",
        tried="0.12.4: chats, titles, embeddings",
    ),
    "continue": LaunchApp(
        AppFile(lambda _, home: home / ".continue" / "config.yaml", _continue),
        _none,
        lambda _: [f'echo "{KEY_VARIABLE}=$(carctl http key continue)" >> ~/.continue/.env'],
        None,
        care="`cn` sends tools to every model",
        tried="`cn` 1.5.47: answers, a call of `Bash`",
    ),
    "vscode": LaunchApp(
        AppFile(lambda env, home: _application(env, home) / "Code" / "User" / "chatLanguageModels.json", _vscode),
        _none,
        lambda _: ["carctl http key vscode  # for the command Chat: Manage Language Models, Update API Key"],
        None,
        care="enter the key by the command Chat: Manage Language Models",
    ),
    "llm": LaunchApp(
        AppFile(_llm_path, _llm),
        _none,
        lambda _: ['llm keys set card --value "$(carctl http key llm)"', "llm -m card/{model} 'What is card?'"],
        None,
        care="an `extra-openai-models.yaml` that is there already is not changed",
        tried="0.36: a prompt, streamed",
    ),
}


def path_of(app: LaunchApp, env: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of an application's file."""
    return None if app.file is None else app.file.path(env, Path(env.get("HOME") or Path.home()))
