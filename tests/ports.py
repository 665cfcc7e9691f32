"""Ports for tests that have to know them before a program listens there."""

import errno
import random
import socket

# Below the ports that Linux and macOS give to connections, and to programs that ask for any: such a port may be given
# away between the look and its use.
_PORTS = range(16_384, 32_768)
# Not by a seed, which a property sets alike in each process that runs the suite.
_random = random.SystemRandom()


def free_port() -> int:
    """Return a port that no program has at any address of this machine."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    while True:
        port = _random.choice(_PORTS)
        try:
            socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return port
