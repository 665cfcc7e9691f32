"""`carctl completion`: what the shells offer, asked of the shells that are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from car_client.carctl.completion import nodes
from car_client.carctl.main import COMMANDS, make_parser
from tests.client.command import carctl

LINES = [
    ("carctl mod", ["models"]),
    ("carctl --sy", ["--system"]),
    ("carctl models ", ["list", "load", "pull", "rm", "show", "unload"]),
    ("carctl completion ", ["bash", "fish", "zsh"]),
    ("carctl infer --pri", ["--priority"]),
    ("carctl infer --priority ", ["latency_critical", "throughput"]),
    ("carctl infer x --reasoning k", ["keep"]),
    ("carctl --socket /tmp/x status --j", ["--json"]),
    ("carctl service install --dry", ["--dry-run"]),
    ("carctl service ", ["install", "logs", "status", "uninstall"]),
]
# What may stand for a value is no command, and a choice is not made twice; fish sees only which words were written.
ONLY_BASH = [
    ("carctl --socket status in", ["infer"]),
    ("carctl --socket = status in", ["infer"]),
    ("carctl service install ", [""]),
]
BASH = """
source {script}
COMP_WORDS=({before} '{last}') COMP_CWORD={place}
_carctl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
needs = {
    shell: pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")
    for shell in ("bash", "zsh", "fish")
}


def script(shell: str, folder: Path) -> Path:
    """Return the file with a shell's script."""
    done = carctl("completion", shell)
    assert (done.returncode, done.stderr) == (0, b"")
    file = folder / "script"
    file.write_bytes(done.stdout)
    return file


def output(*command: str) -> list[str]:
    """Return the sorted lines that a command prints, which must not complain."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return sorted(done.stdout.splitlines())


def test_every_command_and_its_options_are_known() -> None:
    found = {node.words: node for node in nodes(make_parser(COMMANDS))}
    assert set(found[()].commands) == set(COMMANDS)
    assert {"--json", "--watch", "--help"} <= {option.name for option in found["status",].options}
    assert set(found["models",].commands) == {"list", "show", "load", "unload", "pull", "rm"}


@needs["bash"]
@pytest.mark.parametrize(("line", "offered"), [*LINES, *ONLY_BASH])
def test_bash_offers_what_may_come_next(tmp_path: Path, line: str, offered: list[str]) -> None:
    *before, last = line.split(" ")
    asking = BASH.format(script=script("bash", tmp_path), before=" ".join(before), last=last, place=len(before))
    assert output("bash", "-c", asking) == offered


@needs["zsh"]
def test_zsh_takes_its_script(tmp_path: Path) -> None:
    file = script("zsh", tmp_path)
    assert output("zsh", "-fc", f"autoload -U compinit && compinit -D && source {file} && print $_comps[carctl]") == [
        "_bash_complete -o default -F _carctl"
    ]


@needs["fish"]
@pytest.mark.parametrize(("line", "offered"), LINES)
def test_fish_offers_what_may_come_next(tmp_path: Path, line: str, offered: list[str]) -> None:
    file = script("fish", tmp_path)
    found = output("fish", "--no-config", "-c", f"source {file}; complete -C '{line}'")
    assert [each.split("\t")[0] for each in found] == offered


def test_an_unknown_shell_is_wrong_usage() -> None:
    assert carctl("completion", "tcsh").returncode == 2
