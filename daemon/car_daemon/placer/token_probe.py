"""`python -m car_daemon.placer.token_probe HOST:PORT`: status 0 where a Ray head refuses clients without its token."""

import os
import sys

OPEN = 3

if __name__ == "__main__":
    # Before Ray is imported, because it reads its variables then.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    from ray._raylet import GcsClient
    from ray.exceptions import AuthenticationError

    try:
        GcsClient(address=sys.argv[1])
    except AuthenticationError:
        sys.exit(0)
    sys.exit(OPEN)
