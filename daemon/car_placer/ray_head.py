"""The head of a Ray cluster before anything joins it, because Ray itself takes up to 40 s to report what is wrong.

`python -m car_placer.ray_head ADDRESS` ends with status 0, or with 3 and the reason in a line.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

# Ray has no other client that neither starts nor needs a node.
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient
from ray.exceptions import AuthenticationError

from car_placer.shortage import NotConnected

AUTO = "auto"
NOT_CONNECTED = 3
_CONNECT_S = 5.0
_ANSWER_S = 6.0  # a head that is up needs 10 ms
_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def checked(address: str) -> str:
    """Return HOST:PORT of a head that takes this machine's token, and no client without one; raises NotConnected."""
    address = _of_this_machine() if address == AUTO else address
    _connect(address)
    _require_token()
    if _serves(address, "disabled"):
        why = f"the Ray head at {address} takes clients without a token"
        raise NotConnected(f"{why}: start every node with RAY_AUTH_MODE=token and the same token")
    if not _serves(address, "token"):
        raise NotConnected(f"the token in {_source()} is not that of the cluster at {address}: copy the head's there")
    return address


def _of_this_machine() -> str:
    """Return the address of the head that this machine's node has; raises NotConnected."""
    try:
        address: str = canonicalize_bootstrap_address(AUTO)
    except ConnectionError as error:
        raise NotConnected("no Ray node runs on this machine: start one, or give the head's address") from error
    return address


def _connect(address: str) -> None:
    """Raise NotConnected if nothing listens."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        why = f"no Ray head answers at {address} ({error.strerror or type(error).__name__})"
        raise NotConnected(f"{why}: start it, or correct the address") from error


def _require_token() -> None:
    """Raise NotConnected if this machine has no token at all."""
    try:
        if AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
            return
    except AuthenticationError as error:
        raise NotConnected(f"the token in {_source()} is missing or empty: copy the head's there") from error
    raise NotConnected(f"this machine has no token of the cluster: copy the head's to {_source()}")


def _serves(address: str, mode: str) -> bool:
    """Return whether a head answers with the token, or with none in the mode `disabled`; raises NotConnected."""
    os.environ[_MODE] = mode
    # Ray reads its variables once, unless it is made to.
    Config.initialize("")
    try:
        with _silent():
            ThreadPoolExecutor(1).submit(GcsClient, address=address).result(_ANSWER_S)
    except AuthenticationError:
        return False
    except TimeoutError as error:
        why = f"the program at {address} does not answer as a Ray head does"
        advice = "correct the address, and set RAY_USE_TLS as on the head"
        raise NotConnected(f"{why}: {advice}") from error
    except Exception as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotConnected(f"the Ray head at {address} does not answer: {line}") from error
    return True


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Drop standard error, because Ray itself writes a line of each refusal there."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as none:
            os.dup2(none.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _source() -> str:
    """Return the place at which Ray finds the token."""
    return _TOKEN if os.environ.get(_TOKEN) else os.environ.get(_TOKEN_PATH) or "~/.ray/auth_token"


if __name__ == "__main__":
    try:
        checked(sys.argv[1])
    except NotConnected as apart:
        sys.stderr.write(f"{apart}\n")
        # At once, because a call of Ray may hang in its thread.
        os._exit(NOT_CONNECTED)
