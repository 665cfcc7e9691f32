"""A server at Ollama's port, as a program: `python stand_in.py PORT LOG [cut|twice]`.

It answers a chat with ten lines that repeat the last message, and notes `accepted TEXT` and `answered TEXT` in LOG.
Answers wait while `LOG.hold` exists. SIGTERM ends it once its answers are out, with `cut` at once as Ollama does, with
`twice` at the second signal as llama-server does.
"""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LINES = 10
_PAUSE_S = 0.01
_NOTING = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    log: Path

    def do_GET(self) -> None:
        """Answer the paths by which clients find the server."""
        answers = {"/api/version": {"version": "0.35.0"}, "/api/tags": {"models": [{"name": "theirs:latest"}]}}
        self._respond(answers.get(self.path, {}))

    def do_POST(self) -> None:
        """Stream a chat."""
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        self._note("accepted", text)
        while Path(f"{self.log}.hold").exists():  # as while a prompt is read: the head goes with the first line
            time.sleep(_PAUSE_S)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        for number in range(LINES):
            line = {"model": "theirs", "message": {"role": "assistant", "content": text}, "done": number == LINES - 1}
            self.wfile.write(json.dumps(line).encode() + b"\n")
            time.sleep(_PAUSE_S)
        self._note("answered", text)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to standard error."""

    def _respond(self, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _note(self, what: str, text: str) -> None:
        with _NOTING, self.log.open("a") as file:
            file.write(f"{what} {text}\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128


def main(port: str, log: str, *more: str) -> None:
    """Serve until SIGTERM."""
    _Handler.log = Path(log)
    server = _Server(("127.0.0.1", int(port)), _Handler)

    signals: list[int] = []
    told, telling = os.pipe()

    def end(number: int, frame: object) -> None:
        signals.append(number)
        if "cut" in more or ("twice" in more and len(signals) == 2):
            os._exit(0)
        # Starting a thread here could wait for ever: the signal may have come while one was being started.
        os.write(telling, b"!")

    def shut_down() -> None:
        os.read(told, 1)
        server.shutdown()

    threading.Thread(target=shut_down, daemon=True).start()
    signal.signal(signal.SIGTERM, end)
    server.serve_forever(poll_interval=0.02)
    server.server_close()  # waits for the answers


if __name__ == "__main__":
    main(*sys.argv[1:])
