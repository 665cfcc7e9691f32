"""`carctl completion`: what the installed shells offer."""

import shutil
import subprocess
from pathlib import Path

import pytest

from car_client.carctl.main import COMMANDS
from tests.client.carctl.command import carctl, carctl_on_terminal

pytest.importorskip("shtab", reason="the extra `terminal` is not installed")
LINES = [
    ("carctl ", sorted(COMMANDS)),
    ("carctl mod", ["models"]),
    ("carctl --sy", ["--system"]),
    ("carctl models ", ["add", "find", "list", "load", "pull", "rm", "show", "suggest", "unload", "use"]),
    ("carctl cluster ", ["join", "status"]),
    ("carctl completion ", ["bash", "fish", "zsh"]),
    ("carctl infer --pri", ["--priority"]),
    ("carctl infer --priority ", ["latency_critical", "throughput"]),
    ("carctl infer x --reasoning k", ["keep"]),
    ("carctl --socket /tmp/x status --j", ["--json"]),
    ("carctl service install --dry", ["--dry-run"]),
    ("carctl service ", ["install", "logs", "status", "uninstall"]),
    ("carctl call infer_", ["infer_stream"]),
    ("carctl call models/l", ["models/list", "models/load"]),
    ("carctl infer --schema /dev/nul", ["/dev/null"]),
]
BASH = """
source {script}
COMP_WORDS=({before} '{last}') COMP_CWORD={place}
_shtab_carctl
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


@needs["bash"]
@pytest.mark.parametrize(("line", "offered"), LINES)
def test_bash_offers_what_may_come_next(tmp_path: Path, line: str, offered: list[str]) -> None:
    *before, last = line.split(" ")
    asking = BASH.format(script=script("bash", tmp_path), before=" ".join(before), last=last, place=len(before))
    assert output("bash", "-c", asking) == offered


@needs["zsh"]
def test_zsh_takes_its_script(tmp_path: Path) -> None:
    file = script("zsh", tmp_path)
    asking = f'autoload -U compinit && compinit -D && eval "$(<{file})" && print $_comps[carctl]'
    assert output("zsh", "-fc", asking) == ["_shtab_carctl"]


@needs["fish"]
@pytest.mark.parametrize(("line", "offered"), LINES)
def test_fish_offers_what_may_come_next(tmp_path: Path, line: str, offered: list[str]) -> None:
    file = script("fish", tmp_path)
    found = output("fish", "--no-config", "-c", f"source {file}; complete -C '{line}'")
    assert [each.split("\t")[0] for each in found] == offered


@needs["fish"]
def test_a_value_that_is_named_like_a_command_is_still_a_value(tmp_path: Path) -> None:
    file = script("fish", tmp_path)
    found = output("fish", "--no-config", "-c", f"source {file}; complete -C 'carctl --socket status rel'")
    assert [each.split("\t")[0] for each in found] == ["reload"]


def test_an_unknown_shell_is_wrong_usage() -> None:
    assert carctl("completion", "tcsh").returncode == 2


def test_without_shtab_the_line_says_how_to_install_it() -> None:
    with carctl_on_terminal("completion", "bash", without=("shtab",)) as terminal:
        assert terminal.end() == b"carctl: completion needs shtab: pip install 'card-daemon[terminal]'\n"
        assert terminal.process.returncode == 2
