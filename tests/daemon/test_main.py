"""The imports of a start before the daemon listens, and the garbage that a daemon keeps."""

import subprocess
import sys
from pathlib import Path

LATER = ("structlog", "rich", "psutil", "prometheus_client", "numpy", "llama_cpp", "jinja2", "ctypes")
LOADED = """
import sys
from car_daemon.main import main
try:
    main()
except SystemExit as ended:
    assert ended.code == 0
print(*sys.modules)
"""


def test_a_start_imports_only_what_the_first_answer_needs() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, "--check-config"], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert "car_daemon" in packages
    assert not packages & set(LATER)


def test_a_cluster_without_placed_models_imports_nothing_more(tmp_path: Path) -> None:
    loaded = []
    for text in ("", '[cluster]\naddress = "10.0.0.1:6379"\n'):
        (tmp_path / "card.toml").write_text(text)
        command = [sys.executable, "-c", LOADED, "--check-config", "--config", str(tmp_path / "card.toml")]
        loaded.append(set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))
    assert loaded[0] == loaded[1]
    assert not [name for name in loaded[1] if name.partition(".")[0] in ("ray", "cryptography")]
    assert not [name for name in loaded[1] if name.startswith(("car_daemon.cluster", "car_placer"))]


# In place of the daemon, a program that makes objects in cycles, keeps the last 4,000 of them for a while, as
# connections are, and prints the largest number that were garbage at once.
CYCLES = """
import weakref
import car_daemon.command
from car_daemon.main import main

class Cycle:
    def __init__(self):
        self.own = self

def run(arguments):
    alive, kept, most = weakref.WeakSet(), [], 0
    for _ in range(30):
        kept = [Cycle() for _ in range(4000)]
        alive.update(kept)
        most = max(most, len(alive) - len(kept))
    print(most)
    return 0

car_daemon.command.run = run
main()
"""


def test_cycles_of_objects_that_lived_a_while_are_collected_soon_after_their_end() -> None:
    done = subprocess.run([sys.executable, "-c", CYCLES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20_000
