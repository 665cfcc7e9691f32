"""An HTTP server for stand-ins, whose clients may leave whenever they like."""

import sys
from http.server import ThreadingHTTPServer
from typing import Any


class LoopbackServer(ThreadingHTTPServer):
    """Says nothing of clients that hung up: the standard library's own would print to the stderr of the tests."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, if it was anything else."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
