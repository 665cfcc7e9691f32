"""Connections that subscribe to the status every 100 ms and read all of it, until standard input ends: PATH COUNT."""

import os
import resource
import select
import socket
import sys

_SUBSCRIBE = b'{"jsonrpc":"2.0","id":1,"method":"daemon/status","params":{"subscribe":true,"interval_ms":100}}\n'


def _main() -> None:
    path, count = sys.argv[1], int(sys.argv[2])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    poll = select.poll()
    poll.register(0, select.POLLIN)
    clients = {}
    for _ in range(count):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(path)
        client.sendall(_SUBSCRIBE)
        poll.register(client, select.POLLIN)
        clients[client.fileno()] = client
    silent = set(clients)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == 0:
                return
            clients[descriptor].recv(1 << 20)
            if descriptor in silent:
                silent.remove(descriptor)
                if not silent:
                    os.write(1, b".")


if __name__ == "__main__":
    _main()
