"""A model is served on the device that it was configured for, or not at all."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.support import BIN, PATIENCE_S

GPUS = ("/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128")


@pytest.mark.slow
@pytest.mark.skipif(any(Path(path).exists() for path in GPUS), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_no_reason_to_serve_on_the_cpu(folder: Path) -> None:
    ended = subprocess.run(
        [BIN / "card", "--socket", str(folder / "card.sock"), "--gpu-layers", "-1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 69
    assert "gpu_layers is set, and this llama.cpp finds 0 GPUs" in ended.stderr.splitlines()[-1]
