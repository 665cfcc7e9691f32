"""The models of card.toml as Ollama's clients change them: pulled, copied, created and deleted."""

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from car_client.carctl.adopt.candidates import Candidate
from car_client.carctl.adopt.servers import SERVERS
from car_client.carctl.config.card_toml import CardToml
from car_client.carctl.failure import WrongUse
from car_client.carctl.hub.pull import Puller
from car_client.carctl.hub.remote import Hub, choose, repository
from car_client.carctl.hub.remove import remove_files
from car_client.carctl.models.add import apply, check_file, pulled
from car_client.carctl.models.suggestions import GUIDE, SUGGESTIONS
from car_client.carctl.terminal.byte_progress import ByteProgress
from car_client.client import Client
from car_client.errors import CardError
from car_http.catalogue import LATEST
from car_protocol.hub import PREFIX, hub_file, models_folder

_HUBS = ("https://huggingface.co/", "huggingface.co/", "https://hf.co/", "hf.co/", PREFIX)
_LIBRARY = "hf.co/OWNER/REPO[:QUANT] names a file of the hub"
_SIGNS = re.compile(r"[^a-z0-9.]")
# A model that is made from another one does not get these keys. If it were pinned too, each would stay in memory.
_ITS_OWN = ("aliases", "pinned")
_PARTS = re.compile(r"-gguf$|-instruct|-it\b|-q8_0", re.IGNORECASE)


class UnknownModel(CardError):
    """No model has the name."""


class Copied(Struct, frozen=True):
    """What a created model has of its own beside the file of another one: keys of its table, and a Jinja template."""

    table: Mapping[str, object]
    template: str | None = None


def ollamas_models() -> list[Candidate]:
    """Return the models that Ollama has on this machine."""
    return SERVERS["ollama"].candidates(None, os.environ, Path.home())


class Shelf:
    """One card.toml and the daemon that reads it; methods block, and change one after the other.

    They raise CardError, and leave the file as it was then.
    """

    def __init__(
        self,
        config: Path,
        client: Callable[[], Client],
        hub: Callable[[], Hub] = Hub,
        folder: Callable[[], Path] = models_folder,
        stored: Callable[[], Iterable[Candidate]] = ollamas_models,
    ) -> None:
        self._path = config
        self._client = client
        self._hub = hub
        self._folder = folder
        self._stored = stored
        self._templates = config.parent / "created-templates"
        self._changing = threading.Lock()

    def pull(self, name: str, progress: ByteProgress) -> None:
        """Add a model with the file that its name stands for, once that is here."""
        name = name.removesuffix(LATEST)
        progress.note("pulling manifest")
        found = next((each for each in self._stored() if {each.name, *each.aliases} & {*_variants(name)}), None)
        if (repo := _repository(name)) is None and found is not None:
            if found.why_not:
                raise WrongUse(f"{name!r} is not served from Ollama's folder: {found.why_not}")
            table: Mapping[str, object] = found.table
        else:
            if repo is None and (repo := _suggested(name)) is None:
                why = f"no file is known for {name!r}: {_LIBRARY}, and `carctl models suggest` lists some"
                raise UnknownModel(why)
            wanted, hub = repository(repo), self._hub()
            if wanted is None:
                raise WrongUse(f"{name!r} is not a name of a file: {_LIBRARY}")
            table = pulled(Puller(hub, self._folder(), progress), choose(wanted, hub.files(wanted.repo, None)))
        progress.note("writing manifest")
        with self._changed() as (config, client):
            if name not in config.models:
                config.add_model(name, table)
                _serve(client, config, name)

    def copy(self, source: str, name: str) -> None:
        """Give a model a further name."""
        name = name.removesuffix(LATEST)
        with self._changed() as (config, client):
            model = _named(config, client, source)
            if name == GUIDE or _owner(config, name) is not None:
                raise WrongUse(f"destination: {name!r} is a model already: delete it first, or choose another name")
            config.set_aliases(model, [*config.models[model].get("aliases", []), name])
            apply(client, config)

    def create(self, name: str, source: str, own: Copied, progress: ByteProgress) -> None:
        """Add a model with the file of another one, in place of the model that was created under this name before."""
        name = name.removesuffix(LATEST)
        progress.note("writing manifest")
        with self._changed() as (config, client):
            model = _named(config, client, source)
            table = {key: value for key, value in config.models[model].items() if key not in _ITS_OWN}
            before = config.models.get(name)
            if name == GUIDE or (before is None and _owner(config, name) is not None):
                raise WrongUse(f"model: {name!r} is a name of another model: choose another one")
            if before is not None and _file(before) != _file(table):
                raise WrongUse(f"model: {name!r} has another file: delete it first, or choose another name")
            if own.template is not None:
                table["chat_template"] = str(self._written(own.template))
            default = config.default_model
            if before is not None:
                config.remove_models([name])
            kept = {key: before[key] for key in _ITS_OWN if key in before} if before is not None else {}
            config.add_model(name, {**table, **own.table, **kept})
            if default == name:
                config.use_model(name)
            _serve(client, config, name)
            self._tidy(config)

    def delete(self, name: str) -> None:
        """Remove a further name, or a model; its file too, if it was downloaded and no other model has it."""
        with self._changed() as (config, client):
            model = _named(config, client, name)
            table = config.models[model]
            alias = next((each for each in _variants(name) if each in table.get("aliases", [])), None)
            if model not in _variants(name) and alias is not None:
                config.set_aliases(model, [each for each in table["aliases"] if each != alias])
                apply(client, config)
                return
            config.remove_models([model])
            apply(client, config)
            self._tidy(config)
            hub, others = table.get("hf"), [_file(each) for each in config.models.values()]
        if isinstance(hub, str) and _file(table) not in others:
            remove_files(hub_file(hub), self._folder())

    @contextmanager
    def _changed(self) -> Iterator[tuple[CardToml, Client]]:
        with self._changing, self._client() as client, CardToml(self._path) as config:
            yield config, client

    def _written(self, text: str) -> Path:
        """Return the file of a template beside card.toml; its name is its content's, so that none changes."""
        path = self._templates / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jinja"
        try:
            self._templates.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise WrongUse(f"template: cannot write {path}: {error.strerror}") from error
        return path

    def _tidy(self, config: CardToml) -> None:
        """Remove the templates that no model has."""
        kept = {table.get("chat_template") for table in config.models.values()}
        for path in self._templates.glob("*.jinja"):
            if str(path) not in kept:
                path.unlink(missing_ok=True)


def _serve(client: Client, config: CardToml, name: str) -> None:
    """Have the daemon serve a model; raises CardError."""
    apply(client, config)
    check_file(client, config, name)
    if all(name != model.name for model in client.models()):
        raise WrongUse(f"the daemon does not read {config.path}: start both with the same --config")


def _variants(name: str) -> tuple[str, str, str]:
    return name, name.removesuffix(LATEST), name + LATEST


def _owner(config: CardToml, name: str) -> str | None:
    """Return the model that has a name, None if there is none."""
    for each in _variants(name):
        for model, table in config.models.items():
            if each == model or each in table.get("aliases", []):
                return model
    return None


def _named(config: CardToml, client: Client, name: str) -> str:
    """Return the model of card.toml that has a name; raises UnknownModel, and WrongUse for another one's."""
    if (model := _owner(config, name)) is not None:
        return model
    if any({each.name, *each.aliases} & {*_variants(name)} for each in client.models()):
        raise WrongUse(
            f"{name!r} is not in {config.path}: only its models are changed, and `carctl models add` adds some"
        )
    raise UnknownModel(f"model {name!r} not found: GET /api/tags lists the models")


def _file(table: Mapping[str, object]) -> object:
    return table.get("hf") or table.get("path")


def _repository(name: str) -> str | None:
    """Return the repository of the hub, with its quantization, that a name stands for; None for other names."""
    return next((name.removeprefix(prefix) for prefix in _HUBS if name.startswith(prefix)), None)


def _suggested(name: str) -> str | None:
    """Return the suggested repository whose name says the same as one of Ollama's library, such as `qwen3:4b`."""
    for each in SUGGESTIONS:
        if _SIGNS.sub("", _PARTS.sub("", each.repo.partition("/")[2]).lower()) == _SIGNS.sub("", name.lower()):
            return f"{each.repo}:{each.quant}"
    return None
