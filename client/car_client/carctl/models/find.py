"""`carctl models find` and `suggest`: models that are here already, and models that fit this machine."""

from argparse import ArgumentParser, Namespace
from datetime import date
from pathlib import Path
from shlex import quote

from car_client.carctl.models.stores import Found, find_models
from car_client.carctl.models.suggestions import DATED, PURPOSES, Kind, Suggestion, is_old, memory_bytes, suggested
from car_client.carctl.terminal.text import bytes_text, columns, one_line
from car_client.carctl.view.json_output import print_document
from car_client.client import Client

# What a model can beside chat, in the letter of a column; models of some kinds do that alone.
_LETTERS = {
    "tools": "T",
    "thinking": "R",
    "images": "I",
    "audio": "A",
    "fill": "F",
    "embed": "E",
    "rerank": "K",
}
_OF_KINDS: dict[Kind, str] = {"embedding": "embed", "rerank": "rerank"}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `find`."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(client: Client, options: Namespace) -> None:
    """List the models of other programs, each with the command that serves it."""
    found = list(find_models())
    if options.json:
        print_document([{**each._asdict(), "path": str(each.path), "projector": _text(each)} for each in found])
        return
    if not found:
        print("no GGUF files of LM Studio, Ollama, Hugging Face, llama.cpp or card")
        print("models that fit this machine: carctl models suggest")
    for each in found:
        print(f"{one_line(each.name)}  {bytes_text(each.size)}  {each.store}")
        print(f"  {add_command(each)}")


def add_suggest_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `suggest`."""
    add_arguments(parser)
    parser.add_argument("--for", dest="purpose", choices=PURPOSES, help="only models for this")


def suggest(client: Client, options: Namespace) -> None:
    """Print models for this machine's memory: fitting models from the largest down, then larger models."""
    memory = memory_bytes()
    rows = suggested(memory, options.purpose)
    if options.json:
        print_document([{**row._asdict(), "needs_gb": row.needs_gb, "command": row.command} for row in rows])
        return
    cells = [_cells(row, memory) for row in rows]
    print(*columns([("carctl models add", "   GB", "RAM", "licence", "can"), *cells]), sep="\n")
    print(f"GB: of Q4_K_M or near it, {DATED} (~: about). RAM: GB needed; here are {memory / 1e9:.0f}.")
    legend = ", ".join(f"{letter} {ability}" for ability, letter in _LETTERS.items())
    print(f"can: {legend}")
    if any(row.needs_gb * 1e9 > memory for row in rows):
        print("!: more RAM than this machine has")
    if options.purpose is None:
        print(f"for one purpose: --for {', '.join(PURPOSES)}")
    if is_old(date.today()):
        print(f"this table is of {DATED}, older than six months: a newer card knows newer models")


def _cells(row: Suggestion, memory: int) -> tuple[str, ...]:
    mark = "!" if row.needs_gb * 1e9 > memory else ""
    size = f"{'' if row.checked else '~'}{row.size_gb:.1f}"
    abilities = [*row.can, *(_OF_KINDS[kind] for kind in row.kinds if kind in _OF_KINDS)]
    can = "".join(_LETTERS[each] for each in abilities)
    return row.source, f"{size:>5}", f"{row.needs_gb:3.0f}{mark}", row.licence, can


def _text(found: Found) -> str | None:
    return None if found.projector is None else str(found.projector)


def add_command(found: Found) -> str:
    """Return the command that adds a found model by its path."""
    projector = [] if found.projector is None else ["--projector", _quoted(found.projector)]
    named = found.path.name.removesuffix(".gguf") == found.name
    name = [] if named else ["--name", quote(found.name.replace(":", "-"))]
    return " ".join(["carctl models add", _quoted(found.path), *name, *projector])


def _quoted(path: Path) -> str:
    """Return a path as a shell reads it, short in the user's home."""
    home = Path.home()
    return f"~/{quote(str(path.relative_to(home)))}" if path.is_relative_to(home) else quote(str(path))
