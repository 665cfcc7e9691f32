"""The imports of a start before the daemon listens."""

import subprocess
import sys

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
