"""A placer that opens its seats on this machine, as two hosts of the loopback network; run with a descriptor.

Each seat is a process, like one of Ray: it outlives the placer. With `--socket PATH --config FILE` it is a daemon that
places its engines so.
"""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import uvloop

from car_base.host.files import content_of
from car_base.ipc.codec import FrameReader, encode_frame
from car_base.ipc.placing import Join, Place, Placed, Unplaced, context_of, decode_to_placer
from car_base.ipc.spawning import spawn_engine
from car_daemon.config.settings import Flags, load_config
from car_daemon.lifecycle.assembly import Seams, Sockets
from car_daemon.lifecycle.daemon import Daemon
from car_daemon.sockets.own_socket import OwnSocket
from car_daemon.telemetry import logs
from car_placer.relay import Relay, new_pair

HOSTS = {"n1": "127.0.0.1", "n2": "127.0.0.2"}
# The variable with the path of a file that lists the nodes that are up; without it all are.
NODES = "RAY_TEST_NODES"  # as the placer gets Ray's variables


def nodes_up() -> list[str]:
    """Return the nodes that may get an engine."""
    file = Path(os.environ.get(NODES, ""))
    return file.read_text().split() if file.is_file() else list(HOSTS)


def open_seat(order: Place, node: str) -> Placed:
    """Start the process of a seat; return how the daemon reaches it."""
    pair = new_pair()
    command = [sys.executable, __file__, "seat", HOSTS[node]]
    seat = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert seat.stdin is not None
    assert seat.stdout is not None
    seat.stdin.write(pair)
    seat.stdin.close()
    port = int(seat.stdout.readline())
    content = content_of([Path(order.path)])
    return Placed(
        number=order.number, node=node, address=HOSTS[node], port=port, pair=pair, path=order.path, content=content
    )


def place(daemon: socket.socket) -> None:
    """Open a seat for every order, on the nodes in turn."""
    frames, placed = FrameReader(), 0
    while data := daemon.recv(1 << 16):
        for body in frames.feed(data):
            match decode_to_placer(body):
                case Join():
                    pass
                case Place() as order:
                    nodes = [node for node in nodes_up() if node not in order.avoid]
                    answer: Placed | Unplaced = Unplaced(number=order.number, why="no node has a CPU left")
                    if nodes:
                        answer = open_seat(order, nodes[placed % len(nodes)])
                        placed += 1
                    daemon.sendall(encode_frame(answer))


def seat(address: str) -> None:
    """Serve one daemon with one engine."""
    context = context_of(sys.stdin.buffer.read(), "server")
    listener = socket.create_server((address, 0))
    print(listener.getsockname()[1], flush=True)
    asyncio.run(Relay(context, spawn_engine).serve(listener))
    # At once, because a thread may still read the memory.
    os._exit(0)


def card(path: str, file: str) -> None:
    """Run the daemon with this placer."""
    logs.configure("info", "console")
    config = load_config(Flags(socket=path, config=file))
    own = OwnSocket(config.socket)
    try:
        uvloop.run(Daemon(config, Sockets(own), Seams(placer=(sys.executable, __file__))).run())
    finally:
        own.close()


if __name__ == "__main__":
    if sys.argv[1] == "--socket":
        card(sys.argv[2], sys.argv[4])
    elif sys.argv[1] == "seat":
        seat(sys.argv[2])
    else:
        place(socket.socket(fileno=int(sys.argv[1])))
