"""`card --check`: what is said of a llama.cpp that works, crashes, crawls or does not start."""

from pathlib import Path

import pytest

from car_base import guide
from car_daemon.engines.binding_check import check_binding

TRIALS = {
    "works": (
        "print('12000\\nCPU : AVX = 1 | AVX2 = 1 | FMA = 1 | F16C = 1')",
        True,
        "with the built-in model; it finds no GPU",
    ),
    "finds GPUs": (
        "print('12000\\nCUDA\\nCUDA0 (7 of 8 MiB free)\\nCUDA1 (8 of 8 MiB free)')",
        True,
        "; it finds CUDA0 (7 of 8 MiB free), CUDA1 (8 of 8 MiB free)",
    ),
    "crawls": ("print(40)", False, "40 tokens/s with the built-in model, where 500 are the least"),
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False, "SIGILL"),
    "does not start": ("raise OSError('libgomp.so.1 is missing')", False, "libgomp.so.1 is missing"),
}


@pytest.mark.parametrize(("program", "works", "said"), TRIALS.values(), ids=list(TRIALS))
def test_a_trial_is_judged_by_its_end_and_its_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, works: bool, said: str
) -> None:
    pytest.importorskip("llama_cpp")
    (tmp_path / "stand_in.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = check_binding(Path("model.gguf"), "stand_in")
    assert check.works == works
    assert said in check.text
    assert works or "make rebuild" in check.text


def test_a_file_in_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    (tmp_path / "json.py").write_text("open('planted', 'w')")
    monkeypatch.chdir(tmp_path)
    assert check_binding(guide.PATH).works
    assert not (tmp_path / "planted").exists()


def test_a_missing_binding_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    check = check_binding(Path("model.gguf"))
    assert not check.works
    assert "pip install 'card-daemon[daemon]'" in check.text


def test_the_installed_llama_cpp_decodes_the_guide() -> None:
    pytest.importorskip("llama_cpp")
    check = check_binding(guide.PATH)
    assert check.works
    assert check.text.startswith("llama.cpp decodes on this CPU: ")
