"""`carctl models`: list, show, load, unload, find, add, download and remove models."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

from car_client.carctl.failure import WrongUse
from car_client.carctl.hub import pull, remove
from car_client.carctl.models import add, find
from car_client.carctl.models.page import page
from car_client.carctl.request import nearest
from car_client.carctl.terminal.byte_progress import ByteProgress, progress_on
from car_client.carctl.terminal.text import bytes_text, columns, is_terminal, one_line
from car_client.carctl.view.json_output import print_document, print_result, typed
from car_client.client import Client
from car_client.results import Model, ModelDetails
from car_protocol.models import LoadProgress

_MOVES = {"load": "load a model and wait until it is ready", "unload": "unload a model once it has finished its work"}
_HEADINGS = ("model", "state", "size", "context", "capacity", "device", "can")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the models, the default one first", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="print the result as JSON")
    one = actions.add_parser("show", help="show a model: metadata, chat template, memory", allow_abbrev=False)
    one.add_argument("name", metavar="NAME")
    one.add_argument("--json", action="store_true", help="print the result as JSON")
    pull.add_arguments(actions.add_parser("pull", help="download a model of the Hugging Face hub", allow_abbrev=False))
    add.add_arguments(actions.add_parser("add", help="add a model: a file, or one of the hub", allow_abbrev=False))
    add.add_use_arguments(actions.add_parser("use", help="make a model the default one", allow_abbrev=False))
    find.add_arguments(actions.add_parser("find", help="list GGUF files of other programs", allow_abbrev=False))
    find.add_suggest_arguments(actions.add_parser("suggest", help="name models that fit", allow_abbrev=False))
    remove.add_arguments(actions.add_parser("rm", help="remove a downloaded model", allow_abbrev=False))
    for action, meaning in _MOVES.items():
        moved = actions.add_parser(action, help=meaning, allow_abbrev=False)
        moved.add_argument("name", metavar="NAME")


def run(client: Client, options: Namespace) -> None:
    """Run an action and print its result."""
    _ACTIONS[options.action](client, options)


def load_with_bar(client: Client, name: str) -> Model:
    """Load a model and return its entry once it is served, with a bar on a terminal."""
    with progress_on(sys.stderr, speed=False) if is_terminal(sys.stderr) else nullcontext() as shown:
        return client.load_model(name, LoadBar(shown).update if shown else None)


class LoadBar:
    """A bar that begins with the first progress of a load."""

    def __init__(self, shown: ByteProgress) -> None:
        self._shown = shown
        self._begun = False  # whether the bar is drawn

    def update(self, progress: LoadProgress) -> None:
        """Show the loaded bytes."""
        if not self._begun:
            self._shown.begin(progress.model, progress.done, progress.total)
            self._begun = True
        self._shown.update(progress.done)


def _show(client: Client, options: Namespace) -> None:
    names = [model.name for model in client.models()]
    if options.name not in names:
        raise WrongUse(f"unknown model {options.name!r}{nearest(options.name, names)}; `carctl models list` shows them")
    details = client.call("models/show", {"model": options.name})
    if options.json:
        print_document(details)
    else:
        print(*page(typed(details, ModelDetails)), sep="\n")


def table(models: Sequence[Model]) -> Iterator[str]:
    """Yield the table line by line; the reason of a failed model follows it on a line of its own."""
    rows = [
        (
            f"{model.name} (default)" if model.default else model.name,
            model.state,
            bytes_text(model.size_bytes) if model.size_bytes is not None else "-",
            str(model.context_tokens or "-"),
            str(model.capacity),
            model.device if model.replicas == 1 else f"{model.device} x{model.replicas}",
            ", ".join(model.can) or "-",
        )
        for model in models
    ]
    lines = columns([_HEADINGS, *rows])
    yield next(lines)
    for model, line in zip(models, lines, strict=True):
        yield line
        if model.reason is not None:
            yield f"  {one_line(model.reason)}"


def _list(client: Client, options: Namespace) -> None:
    if options.json:
        print_result(client, "models/list")
    else:
        print(*table(client.models()), sep="\n")


def _print_state(model: Model) -> None:
    print(f"{model.name}: {model.state}")


_ACTIONS: dict[str, Callable[[Client, Namespace], None]] = {
    "list": _list,
    "show": _show,
    "pull": lambda _, options: pull.run(options),
    "add": add.run,
    "use": add.use,
    "find": find.run,
    "suggest": find.suggest,
    "rm": remove.run,
    "load": lambda client, options: _print_state(load_with_bar(client, options.name)),
    "unload": lambda client, options: _print_state(client.unload_model(options.name)),
}
