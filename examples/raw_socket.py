"""The protocol without a library: one line of JSON each way over a Unix socket."""

import json
import os
import socket

RUNTIME = os.environ.get("XDG_RUNTIME_DIR")
DEFAULT = f"{RUNTIME}/car/card.sock" if RUNTIME else f"/tmp/car-{os.getuid()}/card.sock"
PATH = os.environ.get("CAR_SOCKET") or DEFAULT
REQUEST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "infer_stream",
    "params": {"messages": [{"role": "user", "content": "What is card?"}], "temperature": 0},
}

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(PATH)
    connection.sendall(json.dumps(REQUEST).encode() + b"\n")
    for line in connection.makefile():
        message = json.loads(line)
        if message.get("method") == "infer_stream/chunk":
            print(message["params"]["text"], end="", flush=True)
        elif "error" in message:
            raise SystemExit(f"error {message['error']['code']}: {message['error']['message']}")
        elif message.get("id") == 1:
            # The terminal response, which ends the request.
            print(f"\n{message['result']['usage']['completion_tokens']} tokens")
            break
