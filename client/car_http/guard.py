"""Admission of a request by its head: host, origin, key and content type, decided without I/O."""

import ipaddress
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from car_client.door import sessions
from car_client.door.keys import Key, KnownKeys
from car_http import page
from car_http.problems import Problem

# The headers that may say that a body is coded, each with the one value that the door reads.
_PLAIN = {"content-encoding": "identity", "transfer-encoding": "chunked"}
# Headers that decide where a request goes, whose it is and how its body reads.
_SINGLE = ("host", "origin", "authorization", "x-api-key", "api-key", "content-type", *_PLAIN)
_LOCAL_NAME = "localhost"
_APP_SCHEMES = ("app", "tauri", "vscode-webview", "vscode-file")
_HOST = re.compile(r"\[([0-9a-fA-F:.]+)\](?::\d{1,5})?|([A-Za-z0-9._-]+)(?::\d{1,5})?", re.ASCII)
_BEARER = "bearer "
_KEY_HEADERS = ("x-api-key", "api-key")
# Paths that show nothing of the user: monitors and the page's form for the key read them without a key.
OPEN_PATHS = frozenset({"/health", "/v1/health", *page.PATHS})
# Paths that take a form beside JSON. A page cannot send one from another origin: `check_place` refuses its origin.
FORM_PATHS = frozenset(below + path for path in ("/systemone", "/audio/transcriptions") for below in ("", "/v1"))
FORM = "multipart/form-data"
_ALLOWED_METHODS = "GET, POST, DELETE, OPTIONS"
_PREFLIGHT_AGE_S = "600"


class RequestHead(Struct, frozen=True):
    """The head of a request; `unix` is true on the Unix socket, whose user is this one."""

    method: str
    path: str
    headers: Mapping[str, str]
    unix: bool
    query: bytes = b""
    secure: bool = False  # by TLS
    address: str | None = None  # of another machine, by which its requests count
    reached: str = ""  # the own address that another machine connected to

    @property
    def anthropic(self) -> bool:
        """Whether one of Anthropic's clients sent the request: they share paths with OpenAI's."""
        return "anthropic-version" in self.headers

    @property
    def content_type(self) -> str:
        """The type of the body, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def reads(self) -> bool:
        """Whether the request changes nothing."""
        return self.method in ("GET", "HEAD")

    @property
    def own_origin(self) -> str | None:
        """The origin of the door's own page, None on the Unix socket, which no browser opens."""
        return None if self.unix else f"http{'s' if self.secure else ''}://{self.headers.get('host', '')}"

    @property
    def form(self) -> bool:
        """Whether the body is a form, at a path that takes forms."""
        return self.path in FORM_PATHS and self.content_type == FORM


class Rules(Struct, frozen=True):
    """Hosts and web origins beside this machine's own, and whether a loopback port needs no key.

    An `adopted` port was another server's, whose clients stay as they are.
    """

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    no_key: bool = False
    adopted: bool = False


def check_single(names: Sequence[str]) -> None:
    """Refuse a request in which a header that decides comes twice, for each reader may take another; raises Problem."""
    for name in _SINGLE:
        if names.count(name) > 1:
            raise Problem(400, "repeated_header", f"the header `{name}` came twice: send it once", param=name)


def check_place(head: RequestHead, rules: Rules) -> None:
    """Check the host and the origin, which a page that a browser opened cannot choose; raises Problem."""
    if not head.unix and not _is_local(head.headers.get("host", ""), rules.hosts, head.reached):
        raise Problem(
            403, "host_not_allowed", "the Host header does not name this machine: add the name to [http] hosts"
        )
    origin = head.headers.get("origin")
    known = origin is None or origin == head.own_origin or origin in rules.origins
    if not known and not (rules.adopted and _is_of_this_machine(str(origin))):
        raise Problem(403, "origin_not_allowed", "pages of this origin are not allowed: add it to [http] origins")


def is_preflight(head: RequestHead) -> bool:
    """Return whether a browser checks what a page of an allowed origin may send."""
    return head.method == "OPTIONS" and "origin" in head.headers and "access-control-request-method" in head.headers


def cors_headers(head: RequestHead) -> dict[str, str]:
    """Return the headers of answers to a page of an allowed origin, none to other clients."""
    origin = head.headers.get("origin")
    if origin is None:
        return {}
    headers = {"access-control-allow-origin": origin, "vary": "Origin"}
    if is_preflight(head):
        headers["access-control-allow-methods"] = _ALLOWED_METHODS
        headers["access-control-max-age"] = _PREFLIGHT_AGE_S
        if requested := head.headers.get("access-control-request-headers"):
            headers["access-control-allow-headers"] = requested
        if "access-control-request-private-network" in head.headers:
            headers["access-control-allow-private-network"] = "true"
    else:
        headers["access-control-expose-headers"] = "retry-after, retry-after-ms, x-should-retry, x-request-id"
    return headers


def needs_key(head: RequestHead, rules: Rules) -> bool:
    """Return whether the request has to carry a key."""
    return not (head.unix or rules.no_key or head.path in OPEN_PATHS or shows_page(head))


def shows_page(head: RequestHead) -> bool:
    """Return whether a browser opens the page, which needs no key until it shows something."""
    return head.path == "/" and head.reads and "text/html" in head.headers.get("accept", "")


def check_key(head: RequestHead, keys: KnownKeys, now: float) -> Key:
    """Return the key that the request carries, or the key of its session; raises Problem."""
    given = _given_key(head.headers)
    if given is None and _from_page(head) and (key := sessions.holder_of(keys, head.headers, now)):
        return key
    if given is None:
        message = "this port needs a key: run `carctl http key` and send it as `Authorization: Bearer KEY`"
        raise Problem(401, "missing_api_key", message, headers={"www-authenticate": "Bearer"})
    key = keys.holder(given)
    if key is None:
        message = "this key is not one of the door's: `carctl http key` prints the one to send"
        raise Problem(401, "invalid_api_key", message, headers={"www-authenticate": "Bearer"})
    return key


def check_content_type(head: RequestHead, rules: Rules) -> None:
    """Refuse the content types that a page may send anywhere without a preflight, and compression; raises Problem.

    An adopted port takes any type from clients other than browsers: `curl -d` sends that of forms.
    """
    for name, plain in _PLAIN.items():
        coding = head.headers.get(name, "").strip().lower()
        if coding not in ("", plain):
            message = f"{coding[:32]!r} is not read: send the body uncompressed, without this `{name.title()}`"
            raise Problem(415, "unsupported_media_type", message, param=name)
    if rules.adopted and not head.headers.keys() & {"origin", "sec-fetch-site"}:
        return
    if head.method == "POST" and head.content_type != "application/json" and not head.form:
        message = "send the header `Content-Type: application/json`"
        raise Problem(415, "unsupported_media_type", message, param="content-type")


def _is_local(host: str, further: frozenset[str], reached: str = "") -> bool:
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = (found[1] or found[2]).lower().removesuffix(".")
    if name == _LOCAL_NAME or name in further:
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    # A page of another site reaches an address under a name of its own, never under the address.
    return address.is_loopback or str(address) == reached


def _is_of_this_machine(origin: str) -> bool:
    """Return whether an origin is a page of this machine, or of an app, which no other site can have."""
    scheme, _, host = origin.partition("://")
    return scheme in _APP_SCHEMES or (scheme in ("http", "https") and _is_local(host, frozenset()))


def _from_page(head: RequestHead) -> bool:
    """Return whether the door's own page sent a request: a browser adds cookies to requests of other ports too."""
    origin = head.headers.get("origin")
    if origin is None:
        return head.reads and head.headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    return origin == head.own_origin


def _given_key(headers: Mapping[str, str]) -> str | None:
    authorization = headers.get("authorization", "")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return next((headers[name].strip() for name in _KEY_HEADERS if name in headers), None)
