"""`carctl completion`: scripts that complete commands, options and choices, made from the parser itself."""

from argparse import Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from car_client.client import Client


class Option(NamedTuple):
    """An option by its longest name; `values` are what may follow it, None where nothing does."""

    name: str
    help: str
    values: tuple[str, ...] | None


class Node(NamedTuple):
    """A command by the words that lead to it, with what may come next."""

    words: tuple[str, ...]
    options: tuple[Option, ...]
    commands: Mapping[str, str]
    choices: tuple[str, ...]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("shell", choices=list(SHELLS), help="write its script to where it looks for completions")


def run(_: Client, options: Namespace) -> None:
    """Print the script for a shell."""
    from car_client.carctl.main import COMMANDS, make_parser

    print(SHELLS[options.shell](make_parser(COMMANDS)), end="")


def nodes(parser: ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[Node]:
    """Yield the commands of a parser, itself first."""
    actions = parser._actions
    below = [action for action in actions if isinstance(action, _SubParsersAction)]
    commands = {each.dest: each.help or "" for action in below for each in action._choices_actions}
    choices = tuple(str(value) for action in actions if _is_positional(action) for value in action.choices or ())
    yield Node(words, tuple(map(_option, filter(_is_shown, actions))), commands, choices)
    for action in below:
        for name, child in action.choices.items():
            yield from nodes(child, (*words, name))


def bash(parser: ArgumentParser) -> str:
    """Return the script for bash."""
    cases = "\n".join(_bash_cases(nodes(parser)))
    return _BASH.replace("@CASES@", cases).replace("@NAME@", parser.prog)


def zsh(parser: ArgumentParser) -> str:
    """Return the script for zsh, which runs that for bash."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash(parser)}"


def fish(parser: ArgumentParser) -> str:
    """Return the script for fish."""
    return "\n".join([f"complete -c {parser.prog} -f", *_fish_lines(parser.prog, list(nodes(parser)))]) + "\n"


SHELLS: dict[str, Callable[[ArgumentParser], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
# Walks the words that name commands, over the values of options, then offers what the table of cases holds for the
# place. A positional choice is not offered twice.
_BASH = """\
_@NAME@() {
    local current=${COMP_WORDS[COMP_CWORD]} previous= chosen= place= word
    local commands= choices= options= values=
    @NAME@_table() {
        commands= choices= options= values=
        case $1 in
@CASES@
        esac
    }
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $word == = ]] && continue
        @NAME@_table "$place $previous"
        previous=$word
        if [[ $values ]]; then
            previous=
            continue
        fi
        @NAME@_table "$place"
        if [[ " $commands " == *" $word "* ]]; then
            place="$place $word"
        elif [[ " $choices " == *" $word "* ]]; then
            chosen=1
        fi
    done
    @NAME@_table "$place $previous"
    if [[ $values ]]; then
        [[ $values == file ]] || COMPREPLY=($(compgen -W "$values" -- "$current"))
        return
    fi
    @NAME@_table "$place"
    [[ $chosen ]] || commands="$commands $choices"
    [[ $current == -* ]] && commands=$options
    COMPREPLY=($(compgen -W "$commands" -- "$current"))
}
complete -o default -F _@NAME@ @NAME@
"""


def _bash_cases(found: Iterator[Node]) -> Iterator[str]:
    for node in found:
        place = "".join(f" {word}" for word in node.words)
        commands, choices = " ".join(node.commands), " ".join(node.choices)
        options = " ".join(option.name for option in node.options)
        yield f"        '{place}') commands='{commands}' choices='{choices}' options='{options}' ;;"
        for option in node.options:
            if option.values is not None:
                yield f"        '{place} {option.name}') values='{' '.join(option.values) or 'file'}' ;;"


def _fish_lines(program: str, found: list[Node]) -> Iterator[str]:
    for node in found:
        # A command is offered where all words that lead to it, and none of its siblings, were written.
        condition = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in node.words)
        unfinished = f"not __fish_seen_subcommand_from {' '.join(node.commands)}" if node.commands else ""
        for name, summary in node.commands.items():
            yield _fish(program, "; and ".join(filter(None, (condition, unfinished))), f"-a {name}", summary)
        for choice in node.choices:
            yield _fish(program, condition, f"-a {choice}", "")
        for option in node.options:
            where = condition or "__fish_use_subcommand"
            yield _fish(program, where, f"-l {option.name.removeprefix('--')}{_fish_values(option)}", option.help)


def _fish_values(option: Option) -> str:
    if option.values is None:
        return ""
    return f" -x -a {_quoted(' '.join(option.values))}" if option.values else " -r -F"


def _fish(program: str, condition: str, what: str, summary: str) -> str:
    described = f" -d {_quoted(summary)}" if summary else ""
    return f"complete -c {program} -n {_quoted(condition)} {what}{described}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _option(action: Action) -> Option:
    name = max(action.option_strings, key=len)
    takes_value = action.nargs != 0
    values = tuple(str(value) for value in action.choices or ()) if takes_value else None
    return Option(name, (action.help or "").replace("%%", "%"), values)


def _is_shown(action: Action) -> bool:
    return bool(action.option_strings)


def _is_positional(action: Action) -> bool:
    return not action.option_strings and not isinstance(action, _SubParsersAction)
