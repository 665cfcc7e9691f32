"""llama-server beside card on the GPU: the same layers, and no work that card does not have."""

import json
import os
import sys
from pathlib import Path

import pytest

from tools.gpu.served import Served
from tools.gpu.speed import LlamaServerOn, case_of

# It keeps its arguments and the GPUs that it may use, and answers as one that is ready.
SERVER = """#!{python}
import http.server, json, os, pathlib, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
given = dict(zip(sys.argv[1::2], sys.argv[2::2]), visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
pathlib.Path(__file__ + ".json").write_text(json.dumps(given))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Ready).serve_forever()
"""


@pytest.mark.parametrize(
    ("device", "layers", "visible"), [("gpu", "all", os.environ.get("CUDA_VISIBLE_DEVICES")), ("cpu", "0", "-1")]
)
def test_llama_server_has_cards_layers_and_slots_and_copies_no_prompts(
    tmp_path: Path, device: str, layers: str, visible: str | None
) -> None:
    server = tmp_path / "llama-server"
    server.write_text(SERVER.format(python=sys.executable))
    server.chmod(0o755)
    case = case_of("any", tmp_path / "m.gguf", streams=8, seconds=1)
    with LlamaServerOn(Served(tmp_path / "m.gguf", device), server).started(case):
        given = json.loads(Path(f"{server}.json").read_text())
    assert (given["--n-gpu-layers"], given["--cache-ram"], given["visible"]) == (layers, "0", visible)
    assert (given["--model"], case.workload.options["cache_prompt"]) == (case.model, False)
