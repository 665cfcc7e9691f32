"""The page of the door: its files, its sessions, and its stream of events."""

import time
from collections.abc import Mapping
from functools import partial

import msgspec
from msgspec import Struct

from car_client.door import sessions
from car_client.door.keys import DEFAULT_NAME
from car_http import page
from car_http.endpoints import ollama, system
from car_http.endpoints.context import DoorContext, Endpoint
from car_http.exchange import Exchange
from car_http.feeds import STATUS
from car_http.guard import shows_page
from car_http.page_view import viewer_of
from car_http.problems import Problem

_HTML = page.KINDS["index.html"]


class SignIn(Struct):
    """The body: an object without members, because the key is in its header."""


async def root(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /` with the page in a browser, and with a line of text elsewhere."""
    if shows_page(exchange.head):
        await exchange.respond(page.content("index.html"), headers=page.HEADERS, kind=_HTML)
    else:
        await ollama.root(door, exchange, nothing)


async def sign_in(door: DoorContext, exchange: Exchange, request: SignIn) -> None:
    """Answer `POST /card/session` with a cookie that stands for the request's key."""
    headers = _cookie(exchange, sessions.issued(exchange.key, time.time())) if exchange.key else {}
    await exchange.respond(msgspec.json.encode(viewer_of(exchange.key)), headers=headers)


async def sign_out(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `DELETE /card/session`: the browser forgets the cookie."""
    await exchange.respond(b"{}", headers=_cookie(exchange, ""))


async def events(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /card/events` with the status as the viewer may see it, again and again."""
    await system.stream(door, exchange, STATUS, partial(door.views.event, viewer=viewer_of(exchange.key)))


async def usage(door: DoorContext, exchange: Exchange, nothing: None) -> None:
    """Answer `GET /card/usage` with rows of the ledger: a person's own; for the user's own key, everybody's."""
    key = exchange.key
    if key is not None and key.person is None and key.name != DEFAULT_NAME:
        # To the daemon its requests are the door's user's, whose rows count other keys too.
        raise Problem(403, "not_permitted", "an app's key reads no usage: people read their own, `carctl usage` all")
    params = {"by": exchange.queries("by") or ["day"], "since": exchange.query("since")}
    if key is not None and key.person is not None:
        params["person"] = key.person
    given = {name: value for name, value in params.items() if value is not None}
    await exchange.respond(bytes(await door.pool.result("daemon/usage", given)), headers=system.NO_STORE)


def _cookie(exchange: Exchange, value: str) -> Mapping[str, str]:
    return {"set-cookie": sessions.cookie_header(value, secure=exchange.head.secure), "cache-control": "no-store"}


async def _file(door: DoorContext, exchange: Exchange, nothing: None, *, name: str) -> None:
    await exchange.respond(page.content(name), headers=page.HEADERS, kind=page.KINDS[name])


FILES = [
    Endpoint("GET", path, partial(_file, name=name), kinds=(page.KINDS[name].partition(";")[0],), local=True)
    for path, name in page.PATHS.items()
]
