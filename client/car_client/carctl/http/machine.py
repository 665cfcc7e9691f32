"""This machine as others of its network find it: names and addresses."""

import socket
from collections.abc import Iterable, Iterator

# Addresses of documentation: the system looks up its own address towards a network, and sends nothing.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
# How this machine reaches itself by the addresses that stand for all of its own.
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the user's own setting


def own_names() -> list[str]:
    """Return the names by which other machines of the network find this one."""
    name = socket.gethostname().partition(".")[0].lower()
    return [name, f"{name}.local"]


def own_addresses() -> Iterator[str]:
    """Yield the addresses of this machine towards the network."""
    yield from _towards(_ELSEWHERE)


def reached_by(everywhere: str) -> Iterator[str]:
    """Yield the addresses at which others reach a port of 0.0.0.0, which is IPv4 alone, or of ::, which is both."""
    yield from _towards(_ELSEWHERE[:1] if everywhere == "0.0.0.0" else _ELSEWHERE)  # noqa: S104 - compared


def _towards(places: Iterable[tuple[socket.AddressFamily, str]]) -> Iterator[str]:
    for family, place in places:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((place, 9))
            except OSError:
                continue
            yield str(probe.getsockname()[0])
