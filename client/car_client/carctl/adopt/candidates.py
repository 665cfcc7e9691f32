"""The models of another server, as tables of card.toml that name its files where they lie."""

import configparser
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from car_client.carctl.models.ollama_store import OllamaModel
from car_client.carctl.models.stores import Found

# A Modelfile's parameters: keys of a model's table, and parameters that the daemon decides by itself.
KEYS = {"temperature": "temperature", "top_p": "top_p", "num_predict": "default_max_tokens"}
_DECIDED = {"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "use_mmap", "low_vram", "numa"}
_SPECIAL = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")  # ends of turns, which the file's own template has
_QUANTIZATION = re.compile(r"[-.](i?q\d\w*|f16|f32|bf16|mxfp4)$", re.IGNORECASE)
_HUB = re.compile(r"/models--([^/]+?)--([^/]+)/snapshots/")
_LATEST = ":latest"
_REPOSITORY = "-gguf"


class Candidate(Struct, frozen=True):
    """A model: its names there, and its table; `notes` say what changes, `why_not` that it stays there."""

    name: str
    table: dict[str, object] = {}
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    why_not: str = ""


def of_ollama(models: Iterable[OllamaModel]) -> list[Candidate]:
    """Return a candidate for each model; names with the same layers are one model."""
    found: dict[tuple[object, ...], Candidate] = {}
    for model in models:
        candidate = _of_ollama(model)
        key = (str(candidate.table), candidate.name if candidate.why_not else "")
        if key in found:
            first = found[key]
            found[key] = replace(first, aliases=(*first.aliases, candidate.name, *candidate.aliases))
        else:
            found[key] = candidate
    return list(found.values())


def _of_ollama(model: OllamaModel) -> Candidate:
    if model.missing:
        return Candidate(model.name, why_not=f"the blob of its {model.missing} is not there: ollama pull {model.name}")
    if model.model is None:
        return Candidate(model.name, why_not="it has no GGUF file: it runs elsewhere, or in another format")
    if model.adapter is not None:
        return Candidate(
            model.name, why_not=f"every answer takes its adapter {model.adapter}, which requests name here"
        )
    table: dict[str, object] = {"path": str(model.model)}
    if model.projector is not None:
        table["projector"] = str(model.projector)
    if model.system.strip():
        table["system"] = model.system
    left_out = ["its first messages"] if model.has_messages else []
    for name, value in model.params.items():
        if name == "num_predict" and isinstance(value, int) and value < 1:
            continue  # without a bound, as an absent key
        if name in KEYS and isinstance(value, int | float):
            table[KEYS[name]] = value
        elif name not in _DECIDED and not (name == "stop" and _are_special(value)):
            left_out.append(name)
    aliases = (model.name.removesuffix(_LATEST),) if model.name.endswith(_LATEST) else ()
    return Candidate(model.name, table, aliases, (f"left out: {', '.join(left_out)}",) if left_out else ())


def _are_special(stops: Any) -> bool:
    return all(_SPECIAL.fullmatch(str(stop)) for stop in (stops if isinstance(stops, list) else [stops]))


def of_lm_studio(models: Iterable[Found]) -> list[Candidate]:
    """Return a candidate for each file, with the key of the repository that LM Studio gives a single file of it."""
    files = list(models)
    keys = {each: _key(each.path.parent.name) for each in files}
    counts = Counter(keys.values())
    return [
        _of_file(each, *([keys[each]] if counts[keys[each]] == 1 else [_with_quantization(each, keys)]))
        for each in files
    ]


def _key(repository: str) -> str:
    return repository.lower().removesuffix(_REPOSITORY)


def _with_quantization(found: Found, keys: Mapping[Found, str]) -> str:
    quantization = _QUANTIZATION.search(found.name)
    return f"{keys[found]}@{quantization[1].lower()}" if quantization else found.name


def of_llama_server(arguments: Sequence[str], folder: Path, preset: str, found: Iterable[Found]) -> list[Candidate]:
    """Return the model of a command line that was started in `folder`, else the presets and the found files."""
    options = _Options(arguments)
    if (path := options.value("-m", "--model")) is not None:
        return [_of_options(options, folder, path)]
    root = options.value("--models-dir")
    return [*_of_presets(preset, folder), *(_of_file(each, *_names(each, root and folder / root)) for each in found)]


def _names(found: Found, root: Path | str | None) -> list[str]:
    """Return the name of a file in a folder of its own below the folder of models, or in the hub's cache."""
    if (hub := _HUB.search(str(found.path))) is not None:
        quantization = _QUANTIZATION.search(found.name)
        return [f"{hub[1]}/{hub[2]}" + (f":{quantization[1].upper()}" if quantization else "")]
    return [found.path.parent.name] if root and found.path.parent != root else []


class _Options:
    """The options of a command line, as `--name VALUE` or `--name=VALUE`."""

    def __init__(self, arguments: Sequence[str]) -> None:
        words = [part for each in arguments for part in (each.split("=", 1) if each.startswith("--") else [each])]
        self._values = dict(pairwise(words))

    def value(self, *names: str) -> str | None:
        """Return the value of an option by one of its names."""
        return next((self._values[name] for name in names if name in self._values), None)


def folder_and_preset(arguments: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the folder of models and the file of presets that a command line of llama-server names."""
    options = _Options(arguments)
    return options.value("--models-dir"), options.value("--models-preset")


def _of_options(options: _Options, folder: Path, path: str) -> Candidate:
    names = (options.value("-a", "--alias") or Path(path).name).split(",")
    table: dict[str, object] = {"path": str(folder / path)}
    if (projector := options.value("--mmproj", "-mm")) is not None:
        table["projector"] = str(folder / projector)
    return Candidate(names[0], table, tuple(names[1:]), _without_adapters(options))


def _without_adapters(options: _Options) -> tuple[str, ...]:
    return ("left out: --lora, which requests name here",) if options.value("--lora", "--lora-scaled") else ()


def _of_presets(text: str, folder: Path) -> Iterator[Candidate]:
    """Yield the models of a file of presets: a section a model, with the options of the command line as keys."""
    presets = configparser.ConfigParser(interpolation=None, strict=False, default_section="*")
    try:
        presets.read_string(f"[*]\n{text}")
    except configparser.Error:
        return
    for name in presets.sections():
        options = _Options([word for key, value in presets[name].items() for word in (option_of(key), value)])
        if path := options.value("-m", "--model"):
            yield replace(_of_options(options, folder, path), name=name, aliases=())


def option_of(key: str) -> str:
    """Return the option that a key of a preset, or a variable of the environment, stands for."""
    return f"-{key}" if len(key) == 1 else f"--{key.lower().removeprefix('llama_arg_').replace('_', '-')}"


def _of_file(found: Found, *names: str) -> Candidate:
    table: dict[str, object] = {"path": str(found.path)}
    if found.projector is not None:
        table["projector"] = str(found.projector)
    name, *aliases = dict.fromkeys([*names, found.name])
    return Candidate(name, table, tuple(aliases))
