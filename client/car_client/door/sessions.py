"""Sessions of the page: a cookie in the place of a key, so that no script and no other site reads the key."""

import hashlib
import hmac
from collections.abc import Mapping

from car_client.door.keys import Key, KnownKeys

COOKIE = "card-session"
# A promise: a key is pasted once a month.
LASTS_S = 30 * 24 * 3600


def issued(key: Key, now: float) -> str:
    """Return the cookie's value of a session that begins now; it ends by itself, or with its key."""
    return _signed(key, int(now) + LASTS_S)


def cookie_header(value: str, *, secure: bool) -> str:
    """Return the header that sets the cookie; an empty value removes it."""
    lasts = LASTS_S if value else 0
    return f"{COOKIE}={value}; Path=/; Max-Age={lasts}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


def holder_of(keys: KnownKeys, headers: Mapping[str, str], now: float) -> Key | None:
    """Return the key whose session a request carries, None without a session that is in force."""
    # By hand: a parser that insists on the standard reads no cookie at all if a neighbour's is odd.
    cookies = (each.strip() for each in headers.get("cookie", "").split(";"))
    value = next((each.removeprefix(f"{COOKIE}=") for each in cookies if each.startswith(f"{COOKIE}=")), "")
    name, _, rest = value.rpartition(".")[0].rpartition(".")
    if not (rest.isascii() and rest.isdigit()) or int(rest[:12]) <= now:
        return None
    key = keys.named(name)
    given = value.encode(errors="surrogateescape")
    return key if key and hmac.compare_digest(_signed(key, int(rest[:12])).encode(), given) else None


def _signed(key: Key, until: int) -> str:
    text = f"{key.name}.{until}"
    return f"{text}.{hmac.digest(key.secret.encode(), f'page {text}'.encode(), hashlib.sha256).hex()}"
