"""This machine as others of its network find it: names and addresses."""

import socket
from collections.abc import Iterator

# Addresses of documentation: the system looks up its own address towards a network, and sends nothing.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
# How this machine reaches itself by the addresses that stand for all of its own.
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the user's own setting


def own_names() -> list[str]:
    """Return the names by which other machines of the network find this one."""
    name = socket.gethostname().partition(".")[0].lower()
    return [name, f"{name}.local"]


def own_addresses(everywhere: str = "::") -> Iterator[str]:
    """Yield this machine's addresses towards the network that a port of `everywhere` has: 0.0.0.0 is IPv4 alone."""
    for family, place in _ELSEWHERE:
        if family == socket.AF_INET6 and everywhere != "::":
            continue
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((place, 9))
            except OSError:
                continue
            yield str(probe.getsockname()[0])


def addresses_of(host: str) -> list[str]:
    """Return the addresses by which other machines reach a port that listens at `host`."""
    return [host] if host not in EVERYWHERE else list(own_addresses(host)) or [EVERYWHERE[host]]
