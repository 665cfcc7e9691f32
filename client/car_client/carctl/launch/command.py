"""`carctl launch`: prints the configuration of an application, or writes it after a look at the difference."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from shlex import quote

from car_client.carctl.config.card_toml import CardToml, ConfigUnwritable, config_path, replace_file
from car_client.carctl.failure import WrongUse
from car_client.carctl.launch.apps import APPS, AppTarget, LaunchApp, path_of
from car_client.carctl.launch.merge import Unmergeable, merged_text
from car_client.carctl.request import nearest
from car_client.carctl.terminal.confirmation import confirmed
from car_client.client import Client
from car_client.door.settings import load_settings
from car_client.errors import CardError
from car_client.results import Model


class NotWritten(CardError):
    """The application's file is as it was."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("app", choices=list(APPS), metavar="APP", help=", ".join(APPS))
    parser.add_argument("--model", metavar="NAME", help="the model (default: the daemon's default model)")
    parser.add_argument("--write", action="store_true", help="write the file; shows the difference and keeps a backup")
    parser.add_argument("--yes", action="store_true", help="write without a question")


def run(client: Client, options: Namespace) -> None:
    """Print the configuration of an application, or write its file; raises WrongUse and NotWritten."""
    app = APPS[options.app]
    target = target_of(client.models(), options.model)
    path = path_of(app)
    if options.write and app.file is not None and path is not None:
        _write(path, app.file.content(target), sure=options.yes)
    elif app.file is not None and path is not None:
        print(f"# {path}")
        print(merged_text(path.suffix, "", app.file.content(target)))
    elif options.write:
        print(f"# nothing to write: {options.app} has no file for it: {app.unwritten}")
    print("# in a shell")
    print(*shell_lines(options.app, app, target), sep="\n")
    if app.care:
        print(f"# take care: {app.care}")
    if app.tools and not target.tools:
        print(f"# {options.app} needs a model with tools, and {target.model} has none: choose another one by --model")
    with suppress(ConfigUnwritable):
        if (offer := CardToml(config_path()).offer) is not None:
            print(f"# {offer} (its files contain prompts)")


def target_of(models: Sequence[Model], name: str | None) -> AppTarget:
    """Return the model with this name or alias, else the default one, behind the configured port."""
    ports = load_settings().ports
    if not ports:
        raise WrongUse("the HTTP door has no port: run carctl http enable first")
    names = [each for model in models for each in (model.name, *model.aliases)]
    model = next(
        (each for each in models if (each.default if name is None else name in (each.name, *each.aliases))), None
    )
    if model is None:
        raise WrongUse(f"unknown model {name!r}{nearest(name or '', names)}; `carctl models list` shows them")
    if model.context_tokens is None:
        raise WrongUse(
            f"the context length of {model.name} is known once it is loaded: carctl models load {model.name}"
        )
    return AppTarget(ports[0].url, model.name, model.context_tokens, "tools" in model.can, "images" in model.can)


def shell_lines(name: str, app: LaunchApp, target: AppTarget) -> Iterator[str]:
    """Yield the variables and commands; a key of the application's own name is made when they run."""
    for variable, value in app.variables(target).items():
        yield f"export {variable}={quote(value)}"
    if app.key is not None:
        yield f'export {app.key}="$(carctl http key {name})"'
    for line in app.start(target):
        yield line.replace("{model}", quote(target.model))


def _write(path: Path, content: object, *, sure: bool) -> None:
    before = _read(path)
    try:
        after = merged_text(path.suffix, before, content)
    except Unmergeable as error:
        raise NotWritten(f"{path}: {error}: add by hand the lines that carctl launch prints without --write") from error
    if after == before:
        print(f"{path} has the configuration already")
        return
    print(*unified_diff(before.splitlines(), after.splitlines(), str(path), str(path), lineterm=""), sep="\n")
    if not sure and not confirmed(f"write {path}"):
        raise NotWritten("nothing was written")
    _replace(path, after.encode())


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise NotWritten(f"{path} is not a file: move it away")
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise NotWritten(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from error


def _replace(path: Path, data: bytes) -> None:
    """Put the file in place, the one before beside it; a link stays a link."""
    place = path.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            backup = path.with_name(f"{path.name}.bak")
            replace_file(backup, place.read_bytes())
            print(f"write {backup}")
        replace_file(place, data)
    except OSError as error:
        raise NotWritten(f"cannot write {path}: {error.strerror}") from error
    print(f"write {path}")
