"""The programs in examples/ run as they are and print the promised lines."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.support import KNOWN, PATIENCE_S, ROOT, Daemon

FOLDER = ROOT / "examples"
ANSWERS = {known.question: known.answer for known in KNOWN}
CARD, LEASE, CAPACITY, GATE = (
    re.escape(ANSWERS[question])
    for question in ("What is card?", "What is a lease?", "What is capacity?", "What is the gate?")
)
# The output of each, in lines that may come in any order.
SHOWS = {
    "first.py": ["", CAPACITY, r"requests at once: 8"],
    "stream_async.py": [
        r"up to 8 answers at once",
        rf"What is card\? {CARD} \(\d+ tokens, \d+ chunks\)",
        rf"What is a lease\? {LEASE} \(\d+ tokens, \d+ chunks\)",
    ],
    "ask.py": [CAPACITY, GATE, r"deadline after \d+ tokens|no token in time: .+|length after 4000 tokens"],
    "raw_socket.py": [CARD, r"\d+ tokens"],
    "extract_json.py": [r"mood: (pleased|annoyed|neutral), urgent: (True|False), items: (none|[a-z, ]+)"],
    "search.py": [
        r"How can I change the limit of the queue\? -> How do I change the queue limit\?",
        r"Explain memory pressure -> What is memory pressure\?",
        r"Can I cancel requests\? -> How do I cancel a request\?",
    ],
    "route.py": [
        r"to (billing|shipping|tech|a person) \(confidence [01]\.\d\d, mass [01]\.\d\d\)",
        r"urgency [012]\.\d of 2",
        r"angry: [01]\.\d\d, \d+ tokens computed",
    ],
    "background.py": [
        r"answered in \d+ ms while ([1-9]|[12]\d|3[01]) of 32 were not done",
        r"32 answers, \d+ tokens, \d+ tokens/s",
    ],
}


@pytest.fixture(autouse=True)
def _ready(daemon: Daemon) -> None:
    daemon.ready()


def run(daemon: Daemon, *command: str | Path) -> list[str]:
    """Return the lines that a program prints; it has to succeed without a complaint."""
    done = subprocess.run(
        command,
        env={**os.environ, "CAR_SOCKET": str(daemon.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def shown(lines: list[str], patterns: list[str]) -> bool:
    """Tell whether each line is one of the patterns', and each pattern is shown."""
    return len(lines) == len(patterns) and all(any(re.fullmatch(each, line) for line in lines) for each in patterns)


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_shows_what_it_promises(daemon: Daemon, name: str) -> None:
    lines = run(daemon, sys.executable, FOLDER / name)
    assert shown(lines, SHOWS[name]), lines


def test_the_raw_example_needs_the_standard_library_alone(daemon: Daemon) -> None:
    assert shown(run(daemon, sys.executable, "-I", "-S", FOLDER / "raw_socket.py"), SHOWS["raw_socket.py"])


def test_every_example_is_run_says_what_it_shows_and_is_in_the_readme() -> None:
    files = sorted(FOLDER.glob("*.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {file.name for file in files} == SHOWS.keys()
    for file in files:
        assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
        assert f"(examples/{file.name})" in readme
