"""`carctl models`: what the daemon can serve."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from msgspec import UNSET

from car_client.carctl import pull, remove
from car_client.carctl.byte_progress import Progress, progress_on
from car_client.carctl.document import print_document, print_result, typed
from car_client.carctl.failure import WrongUse
from car_client.carctl.figures import bytes_text
from car_client.carctl.model_page import page
from car_client.carctl.request import nearest
from car_client.carctl.terminal import columns, is_terminal, one_line
from car_client.client import Client
from car_protocol.models import LoadProgress, Model, ModelDetails

_MOVES = {"load": "load one now, and wait until it is ready", "unload": "let one go when its work is done"}
_HEADINGS = ("model", "state", "size", "context", "capacity", "device", "can")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what can be done with models."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="what there is, the default one first", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="the result as it came")
    one = actions.add_parser("show", help="one with its metadata, chat template, and how much fits", allow_abbrev=False)
    one.add_argument("name", metavar="NAME")
    one.add_argument("--json", action="store_true", help="the result as it came")
    pull.add_arguments(actions.add_parser("pull", help="download one from the Hugging Face hub", allow_abbrev=False))
    remove.add_arguments(actions.add_parser("rm", help="remove a downloaded one", allow_abbrev=False))
    for action, meaning in _MOVES.items():
        moved = actions.add_parser(action, help=meaning, allow_abbrev=False)
        moved.add_argument("name", metavar="NAME")


def run(client: Client, options: Namespace) -> None:
    """Do what the action says, and print the table of models, one entry, a state, or what became of a file."""
    if options.action == "pull":
        pull.run(options)
    elif options.action == "rm":
        remove.run(client, options)
    elif options.action == "load":
        _load(client, options.name)
    elif options.action == "unload":
        model = typed(client.call("models/unload", {"model": options.name}), Model)
        print(f"{model.name}: {model.state}")
    elif options.action == "show":
        _show(client, options)
    elif options.json:
        print_result(client, "models/list")
    else:
        print(*table(client.models()), sep="\n")


def _load(client: Client, name: str) -> None:
    """Have a model loaded, with a bar on a terminal."""
    if not is_terminal(sys.stderr):
        model = client.load_model(name, lambda _: None)
    else:
        with progress_on(sys.stderr) as shown:
            model = client.load_model(name, LoadBar(shown).reached)
    print(f"{model.name}: {model.state}")


class LoadBar:
    """Begins a bar with the first that is heard of a load."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        # Mutable state: whether the bar is there.
        self._begun = False

    def reached(self, progress: LoadProgress) -> None:
        """Show how much is loaded."""
        if not self._begun:
            self._shown.begin(progress.model, progress.done, progress.total)
            self._begun = True
        self._shown.reached(progress.done)


def _show(client: Client, options: Namespace) -> None:
    names = [model.name for model in client.models()]
    if options.name not in names:
        raise WrongUse(f"there is no model {options.name!r}{nearest(options.name, names)}")
    details = client.call("models/show", {"model": options.name})
    if options.json:
        print_document(details)
    else:
        print(*page(typed(details, ModelDetails)), sep="\n")


def table(models: Sequence[Model]) -> Iterator[str]:
    """Yield the table line by line; why a model failed stands below it."""
    lines = columns([_HEADINGS, *map(_row, models)])
    yield next(lines)
    for model, line in zip(models, lines, strict=True):
        yield line
        if model.reason is not UNSET:
            yield f"  {one_line(model.reason)}"


def _row(model: Model) -> tuple[str, ...]:
    return (
        f"{model.name} (default)" if model.default else model.name,
        model.state,
        bytes_text(model.size_bytes) if model.size_bytes is not None else "-",
        str(model.context_tokens or "-"),
        str(model.capacity),
        model.device if model.replicas == 1 else f"{model.device} x{model.replicas}",
        ", ".join(model.can) or "-",
    )
