"""`carctl models find` and `suggest`: models that are here already, and models that fit this machine."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from shlex import quote

from car_client.carctl.models.stores import Found, find_models
from car_client.carctl.models.suggestions import DATED, Suggestion, memory_bytes, suggested
from car_client.carctl.terminal.text import bytes_text, columns, one_line
from car_client.carctl.view.json_output import print_document
from car_client.client import Client


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `find` and `suggest`."""
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


def suggest(client: Client, options: Namespace) -> None:
    """Print ten models for this machine's memory: fitting models from the largest down, then larger models."""
    memory = memory_bytes()
    rows = suggested(memory)
    if options.json:
        print_document([{**row._asdict(), "needs_gb": row.needs_gb, "command": row.command} for row in rows])
        return
    cells = [_cells(row, memory) for row in rows]
    print(*columns([("carctl models add", "   GB", "RAM", "licence", "can"), *cells]), sep="\n")
    print(f"GB: of Q4_K_M files, {DATED} (~: about). RAM: GB needed; this machine has {memory / 1e9:.0f}.")
    if any(row.needs_gb * 1e9 > memory for row in rows):
        print("!: more RAM than this machine has")


def _cells(row: Suggestion, memory: int) -> tuple[str, ...]:
    mark = "!" if row.needs_gb * 1e9 > memory else ""
    size = f"{'' if row.checked else '~'}{row.size_gb:.1f}"
    return row.source, f"{size:>5}", f"{row.needs_gb:3.0f}{mark}", row.licence, " ".join(row.can)


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
