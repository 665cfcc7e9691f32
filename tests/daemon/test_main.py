"""What a start of the daemon imports before it listens."""

import subprocess
import sys

LATER = ("psutil", "prometheus_client", "numpy", "llama_cpp", "jinja2")
NEVER = ("rich", "typing_extensions")
LOADED = """
import sys
from car_daemon.main import main
try:
    main()
except SystemExit as ended:
    assert ended.code == 0
print(*(name for name, module in sys.modules.items() if module is not None))
"""


def test_a_start_imports_nothing_that_the_first_answer_can_do_without() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, "--check-config"], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert "car_daemon" in packages
    assert not packages & {*LATER, *NEVER}
