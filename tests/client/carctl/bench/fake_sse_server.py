"""An HTTP server on the loopback that answers completions as its knobs say, and remembers what it was asked."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.client.carctl.bench.loopback import LoopbackServer

EVENTS = [
    {"choices": [{"text": "Hel"}]},
    {"choices": [{"text": "lo"}]},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
]
# Answers in one piece, by the end of their path.
WHOLE = {
    "embeddings": b'{"data":[{"embedding":[0.0]}],"usage":{"prompt_tokens":7}}',
    "systemone": b'{"model":"m","answers":{"0":{"noul":0.5}},"usage":{"input_tokens":9,"output_tokens":0}}',
}


class FakeSseServer:
    """Answers every POST."""

    def __init__(self) -> None:
        # The knobs: the status, the type, the events, and whether the body comes in chunks; whole answers are JSON.
        self.status = 200
        self.content_type = "text/event-stream"
        self.events: list[Any] = [*EVENTS, "[DONE]"]
        self.chunked = True
        # Mutable state: the paths and bodies that came, guarded by the interpreter: appending is one step.
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.agents: list[str] = []  # the User-Agent of each request
        self.url = ""

    def body(self) -> list[bytes]:
        """Return the events as they are sent."""
        texts = [event if isinstance(event, str) else json.dumps(event) for event in self.events]
        return [f"data: {text}\n\n".encode() for text in texts]


@contextmanager
def fake_sse_server() -> Iterator[FakeSseServer]:
    """Serve for the length of a block."""
    knobs = FakeSseServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            knobs.asked.append((self.path, json.loads(content)))
            knobs.agents.append(self.headers["user-agent"])
            whole = WHOLE.get(self.path.rpartition("/")[2])
            self.send_response(knobs.status)
            self.send_header("Content-Type", "application/json" if whole else knobs.content_type)
            if knobs.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in [whole] if whole else knobs.body():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if knobs.chunked else piece)
            if knobs.chunked:
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with LoopbackServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        knobs.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield knobs
        finally:
            server.shutdown()
            thread.join()
