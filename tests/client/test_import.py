"""The cost of importing the client, and the modules that come along."""

import subprocess
import sys

import pytest

from car_client.carctl.main import COMMANDS

MOST_OF_ASYNCIO = 2
OUTSIDERS = (
    "asyncio",
    "uvloop",
    "psutil",
    "structlog",
    "numpy",
    "jinja2",
    "llama_cpp",
    "car_daemon",
    "rich",
    "prompt_toolkit",
    "huggingface_hub",
    "shtab",
    "PIL",
)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def test_the_import_brings_msgspec_the_standard_library_and_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import car_client; print(*(set(sys.modules) - before))"
    packages = {name.partition(".")[0] for name in python("-c", code).stdout.split()}
    # msgspec itself takes typing_extensions where it is installed.
    ours = {"car_client", "car_protocol", "msgspec", "typing_extensions"}
    assert packages - ours <= sys.stdlib_module_names
    assert not packages & set(OUTSIDERS)


@pytest.mark.parametrize("module", ["main", "status", "infer", "chat.command", "top.command", "models.command"])
def test_a_command_brings_no_event_loop_and_nothing_that_draws(module: str) -> None:
    code = f"import sys, car_client.carctl.{module}; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in python("-c", code).stdout.split()}
    assert not loaded & set(OUTSIDERS)


def test_a_command_brings_no_other_command() -> None:
    loaded = python("-c", "import sys, car_client.carctl.main; print(*sys.modules)").stdout.split()
    assert not {f"car_client.carctl.{command.module}" for command in COMMANDS.values()} & set(loaded)


def test_the_import_takes_little_processor_time() -> None:
    # A machine's slow phases of some tenths of a second meet either of a pair.
    assert min(_import_s("car_client") / _import_s("asyncio") for _ in range(5)) < MOST_OF_ASYNCIO


def test_the_asyncio_half_is_imported_at_its_first_use() -> None:
    code = "from car_client import AsyncClient, AsyncStream; import sys; print('asyncio' in sys.modules)"
    assert python("-c", code).stdout == "True\n"


def test_every_promised_name_is_there() -> None:
    python("-W", "error", "-c", "import car_client; [getattr(car_client, name) for name in car_client.__all__]")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    code = "import car_client; print(hasattr(car_client, 'Nothing'))"
    assert python("-c", code).stdout == "False\n"


def _import_s(module: str) -> float:
    code = f"import time; begun = time.process_time(); import {module}; print(time.process_time() - begun)"
    return float(python("-c", code).stdout)
