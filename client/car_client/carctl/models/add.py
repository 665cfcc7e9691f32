"""`carctl models add` and `use`: models of card.toml, and the reload that brings them into force."""

import os
import re
import stat
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from shlex import quote

from car_client.carctl.admin import reload_config
from car_client.carctl.config.card_toml import CardToml, config_path
from car_client.carctl.failure import WrongUse
from car_client.carctl.hub.folder import folder_of
from car_client.carctl.hub.pull import EVERYBODY_READS, Puller
from car_client.carctl.hub.remote import FileChoice, Hub, choose, repository
from car_client.carctl.models.stores import is_later_part
from car_client.carctl.models.suggestions import GUIDE
from car_client.carctl.request import nearest
from car_client.carctl.terminal.byte_progress import progress_on
from car_client.client import Client
from car_client.errors import DaemonUnavailable
from car_client.results import Model
from car_protocol.hub import PREFIX, HubFile, hub_file

_MAGIC = b"GGUF"
_PART = re.compile(r"-00001-of-\d{5}$")
_FORM = "PATH|hf:OWNER/REPO[:QUANT]|hf:OWNER/REPO/FILE.gguf"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of `add`."""
    parser.add_argument("source", metavar=_FORM, help="a GGUF file, or a repository of the hub to download from")
    parser.add_argument("--name", type=_name, help="the model's name (default: from its file's)")
    parser.add_argument("--projector", metavar="PATH", help="the file of the model's image projector")
    parser.add_argument("--use", action="store_true", help="make it the default model")
    _add_config(parser)


def add_use_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of `use`."""
    parser.add_argument("name", metavar="NAME", help="a configured model")
    _add_config(parser)


def _add_config(parser: ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="the configuration (default: your card.toml)")


def _name(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ArgumentTypeError(f"{text!r} is not a name: give printable characters")
    return text


def run(client: Client, options: Namespace) -> None:
    """Add a model; raises ConfigUnwritable, PullError or WrongUse and leaves the configuration as it was."""
    with _config(options) as config:
        if options.source.startswith(PREFIX):
            name, table = _downloaded(config, options)
        else:
            name, table = _local(config, options)
        config.add_model(name, table)
        runs = apply(client, config)
        if runs:
            check_file(client, config, name)
        if options.use:
            config.use_model(name)
            apply(client, config)
    print(f"added {name} to {config.path}{', the default model' if options.use else ''}")
    _tell(client, name, config, runs=runs)


def use(client: Client, options: Namespace) -> None:
    """Make a configured model the default one."""
    with _config(options) as config:
        names = list(dict.fromkeys([GUIDE, *config.models]))
        if options.name not in names:
            facts = f"{config.path} has no model {options.name!r}{nearest(options.name, names)}"
            raise WrongUse(f"{facts}; there are: {', '.join(names)}; carctl models add makes another one")
        before = config.default_model or GUIDE
        config.use_model(options.name)
        runs = apply(client, config)
        if runs:
            check_file(client, config, options.name)
    print(f"default model: {options.name} (before: {before}), in {config.path}")
    _tell(client, options.name, config, runs=runs)


def _config(options: Namespace) -> CardToml:
    return CardToml(options.config or config_path(system=options.system))


def apply(client: Client, config: CardToml) -> bool:
    """Save the changes and have the daemon read them; return whether a daemon runs."""
    config.save()
    try:
        reload_config(client)
    except DaemonUnavailable:
        return False
    return True


def check_file(client: Client, config: CardToml, name: str) -> None:
    """Raise WrongUse and take the changes back if the daemon finds a fault in the model's file."""
    if _served(client, name) is None:
        return  # the daemon reads another configuration
    details = client.call("models/show", {"model": name})
    if "why" in details:
        config.restore()
        reload_config(client)
        facts = f"{details['model']['path']} cannot be served: {details['why']}"
        raise WrongUse(f"{facts}; {config.path} stays as it was")


def _served(client: Client, name: str) -> Model | None:
    return next((model for model in client.models() if model.name == name), None)


def _tell(client: Client, name: str, config: CardToml, *, runs: bool) -> None:
    """Print how to use the model, or that the daemon reads another file."""
    if not runs:
        print("no daemon runs; it reads this when it starts: carctl up", file=sys.stderr)
        return
    served = _served(client, name)
    if served is None:
        print(f"the daemon does not read {config.path}: start it without --config, or give this command --config")
    else:
        command = "embed" if "embed" in served.can and "generate" not in served.can else "infer"
        print(f'try it: carctl {command} --model {quote(name)} "Hello"')
        if config.offer is not None:
            print(f"{config.offer} (its files contain prompts)")


def _local(config: CardToml, options: Namespace) -> tuple[str, dict[str, object]]:
    """Return name and table of a file of this machine."""
    path = Path(os.path.abspath(Path(options.source).expanduser()))
    _check_gguf(path)
    table: dict[str, object] = {"path": str(path)}
    if options.projector is not None:
        projector = Path(os.path.abspath(Path(options.projector).expanduser()))
        _check_gguf(projector)
        table["projector"] = str(projector)
    return _free_name(config, options.name or name_of(path.name)), table


def _downloaded(config: CardToml, options: Namespace) -> tuple[str, dict[str, object]]:
    """Return name and table of a model of the hub, once all its files are here."""
    if options.projector is not None:
        raise WrongUse("--projector is for files of this machine: a repository's projector is downloaded with it")
    if options.system:
        os.umask(EVERYBODY_READS)  # the service runs as another user
    hub = Hub()
    choice = _chosen(hub, options.source)
    name = _free_name(config, options.name or name_of(Path(choice.model.path).name))
    with progress_on(sys.stderr) as progress:
        return name, pulled(Puller(hub, folder_of(system=options.system), progress), choice)


def pulled(puller: Puller, choice: FileChoice) -> dict[str, object]:
    """Return the table of a model of the hub, once all its files are here; raises PullError."""
    table: dict[str, object] = {"hf": str(choice.model).removeprefix(PREFIX)}
    puller.pull(choice.model)
    if choice.projector is not None:
        table["projector"] = str(puller.pull(choice.projector))
    return table


def _chosen(hub: Hub, source: str) -> FileChoice:
    wanted = repository(source)
    if wanted is not None:
        return choose(wanted, hub.files(wanted.repo, None))
    try:
        file: HubFile = hub_file(source.removeprefix(PREFIX))
    except ValueError as error:
        raise WrongUse(f"{error}, and not hf:OWNER/REPO[:QUANT]") from error
    return FileChoice(file, None)


def _check_gguf(path: Path) -> None:
    """Raise WrongUse unless the path is a file that begins as GGUF does, and not a later part of a model."""
    try:
        # A pipe would have the command wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            found = file.read(len(_MAGIC)) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except IsADirectoryError as error:
        raise WrongUse(f"{path} is a folder: name a GGUF file in it") from error
    except FileNotFoundError as error:
        raise WrongUse(f"there is no file {path}; a model of the hub is hf:OWNER/REPO[:QUANT]") from error
    except OSError as error:
        raise WrongUse(f"cannot read {path}: {error.strerror}") from error
    if found != _MAGIC:
        raise WrongUse(f"{path} is not a GGUF file: it does not begin with GGUF")
    if is_later_part(path.name):
        raise WrongUse(f"{path.name} is a later part of a model: name its first part, -00001-of-")


def name_of(file: str) -> str:
    """Return a model's name after its file's, without the suffix and the number of a part."""
    return _PART.sub("", file.removesuffix(".gguf")) or file


def _free_name(config: CardToml, name: str) -> str:
    if name == GUIDE:
        raise WrongUse(f"{GUIDE} is the name of the built-in model: give --name NAME")
    if name in config.models:
        raise WrongUse(f"{config.path} has a model {name} already: give --name NAME, or remove [models.{name}]")
    return name
