"""The page: its files and headers, its sessions, and what its stream shows to whom."""

import asyncio
import json
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client.carctl.failure import WrongUse
from car_client.carctl.http.page import has_screen, leading_to, link_of
from car_client.door.keys import Key, KnownKeys, add_key, digest_of, remove_key
from car_client.door.sessions import COOKIE, LASTS_S, cookie_header, holder_of, issued
from car_client.door.settings import load_settings
from car_http import page
from car_http.feeds import MOST_STREAMS
from car_http.page_view import Viewer, viewer_of, visible
from car_protocol.status import Status
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import status as sample
from tests.door.support import Answer, DoorProcess, OfflineDoor
from tests.door.test_security import RawConnection, head
from tests.pace import HANG_S

HOST = "localhost"
BROWSER = {"host": HOST, "accept": "text/html,application/xhtml+xml"}
ORIGIN = {"origin": f"http://{HOST}", "content-type": "application/json"}
SSE = {"host": HOST, "accept": "text/event-stream"}
FOLDER = Path(page.__file__).parent
KEY = Key("me", "x" * 20)


def sequence(tenant: str | None, client: str) -> dict[str, Any]:
    """Return a running request."""
    facts = {"model": "guide", "sequence": 0, "phase": "decode", "uid": 1, "connection": 1, "age_ms": 1.0}
    return facts | {"prompt_tokens": 3, "done_tokens": 1, "tenant": tenant, "client": client}


def waiting(tenant: str | None, requests: int) -> dict[str, Any]:
    """Return requests that wait."""
    facts = {"model": "guide", "awaits": "sequence", "oldest_ms": 5.0, "uid": 1, "connection": 1}
    return facts | {"requests": requests, "tenant": tenant}


def busy(fake: FakeDaemon) -> None:
    """Have the daemon report requests of two keys."""
    lists = {"sequences": [sequence("me", "mine"), sequence("other", "secret")]}
    fake.answers["daemon/status"] = (
        sample(str(fake.path)) | lists | {"waiting": [waiting("other", 3), waiting("me", 1)]}
    )


@pytest.fixture
def key(folder: Path) -> str:
    """A key that is not the user's own."""
    return add_key(folder / "http-keys", "me").secret


@pytest.fixture
def own(folder: Path) -> str:
    """The user's own key."""
    return add_key(folder / "http-keys", "default").secret


async def signed_in(door: OfflineDoor, key: str) -> str:
    """Return the cookie of a new session."""
    headers = ORIGIN | {"host": HOST, "authorization": f"Bearer {key}"}
    answer = await door.request("POST", "/card/session", b"{}", headers, unix=False)
    assert answer.status == 200
    return answer.headers["set-cookie"].partition(";")[0]


async def first_event(door: OfflineDoor, headers: dict[str, str], *, unix: bool = False) -> dict[str, Any]:
    """Return the first event of a stream, which its client then leaves."""
    answer = Answer()
    task = asyncio.create_task(door.into(answer, "GET", "/card/events", b"", SSE | headers, unix=unix))
    await answer.began.wait()
    answer.left.set()
    await task
    assert answer.status == 200, answer.body
    return dict(answer.events[0])


def test_the_page_needs_no_key_and_takes_nothing_from_elsewhere(scripted_door: DoorProcess) -> None:
    for path, kind in {"/": "text/html", "/page/page.js": "text/javascript", "/page/page.css": "text/css"}.items():
        with RawConnection(scripted_door) as connection:
            lines = ("Authorization: none", "Accept: text/html, */*")
            code, received = connection.answer(head(scripted_door, *lines, path=path, method="GET"))
        headers = received.partition(b"\r\n\r\n")[0].decode().lower()
        assert code == 200
        assert f"content-type: {kind}" in headers
        assert "content-security-policy: default-src 'self'; base-uri 'none'" in headers
        assert "frame-ancestors 'none'" in headers
        assert "x-content-type-options: nosniff" in headers


def test_the_page_is_whole_plain_and_small() -> None:
    texts = {path.name: path.read_text() for path in FOLDER.iterdir() if path.suffix in (".html", ".css", ".js")}
    assert set(texts) | {"icon.svg"} == set(page.KINDS)
    assert sum(text.count("\n") for text in texts.values()) <= 1500
    for name, text in texts.items():
        assert not re.search(r"https?://|@import|url\(", text), name
        imported = re.findall(r'from "\./([a-z]+\.js)"', text)
        assert set(imported) <= set(texts), name
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", texts["index.html"])


def test_the_page_shows_strangers_words_as_text_alone() -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|eval\(|Function\("
    )
    for path in FOLDER.glob("*.js"):
        assert not re.search(forbidden, path.read_text()), path.name


async def test_programs_still_read_a_line_of_text_at_the_root(offline: OfflineDoor) -> None:
    assert (await offline.get("/")).body == b"card is running"
    assert (await offline.request("GET", "/", b"", {"host": HOST}, unix=False)).status == 401
    assert b"<!doctype html>" in (await offline.request("GET", "/", b"", BROWSER, unix=False)).body


async def test_a_session_stands_for_its_key_until_the_key_is_removed(
    offline: OfflineDoor, folder: Path, key: str
) -> None:
    cookie = await signed_in(offline, key)
    headers = {"host": HOST, "cookie": f"other=1; {cookie}"}
    assert key not in cookie
    assert (await offline.request("GET", "/v1/models", b"", headers, unix=False)).status == 200
    remove_key(folder / "http-keys", "me")
    assert (await offline.request("GET", "/v1/models", b"", headers, unix=False)).status == 401


async def test_a_wrong_key_gets_no_session(offline: OfflineDoor, key: str) -> None:
    headers = ORIGIN | {"host": HOST, "authorization": "Bearer wrong"}
    answer = await offline.request("POST", "/card/session", b"{}", headers, unix=False)
    assert answer.status == 401
    assert "set-cookie" not in answer.headers


async def test_signing_out_removes_the_cookie(offline: OfflineDoor, key: str) -> None:
    headers = ORIGIN | {"host": HOST, "cookie": await signed_in(offline, key)}
    answer = await offline.request("DELETE", "/card/session", b"", headers, unix=False)
    assert answer.headers["set-cookie"].startswith(f"{COOKIE}=; Path=/; Max-Age=0; HttpOnly")


@pytest.mark.parametrize(
    ("method", "more", "expected"),
    [
        ("GET", {}, 200),
        ("GET", {"sec-fetch-site": "same-origin"}, 200),
        ("GET", {"sec-fetch-site": "same-site"}, 401),
        ("GET", {"sec-fetch-site": "cross-site"}, 401),
        ("GET", {"origin": "http://localhost:3000"}, 403),
        ("POST", {"origin": f"http://{HOST}"}, 200),
        ("POST", {}, 401),
        ("POST", {"sec-fetch-site": "same-origin"}, 401),
        ("POST", {"origin": "http://localhost:3000"}, 403),
        ("POST", {"origin": f"https://{HOST}"}, 403),
        ("POST", {"origin": "null"}, 403),
    ],
)
async def test_a_cookie_counts_for_the_doors_own_page_alone(
    offline: OfflineDoor, fake: FakeDaemon, key: str, method: str, more: dict[str, str], expected: int
) -> None:
    fake.answers["models/load"] = {}
    headers = {"host": HOST, "cookie": await signed_in(offline, key), "content-type": "application/json"} | more
    path, body = ("/v1/models", b"") if method == "GET" else ("/v1/models/load", b'{"model":"guide"}')
    assert (await offline.request(method, path, body, headers, unix=False)).status == expected


def test_a_cookie_is_kept_from_scripts_other_sites_and_by_tls_from_the_network() -> None:
    plain, secure = cookie_header("x", secure=False), cookie_header("x", secure=True)
    assert plain == f"{COOKIE}=x; Path=/; Max-Age={LASTS_S}; HttpOnly; SameSite=Strict"
    assert secure == plain + "; Secure"


@pytest.mark.parametrize(
    "changed",
    [
        "",
        "x",
        "me.1.2",
        "me..",
        "other.{until}.{signed}",
        "me.9{until}.{signed}",
        "me.{until}.{signed}0",
        "me.²³.{signed}",
    ],
)
def test_a_changed_session_is_refused(changed: str) -> None:
    _, until, signed = issued(KEY, 0).split(".")
    headers = {"cookie": f"{COOKIE}={changed.format(until=until, signed=signed)}"}
    assert holder_of(KnownKeys([KEY, Key("other", "y" * 20)]), headers, 1) is None


@pytest.mark.parametrize("odd", ['prefs={"a": 1}', "theme=dark mode", "flag", "x=é", "domain=x", "=", ""])
def test_odd_cookies_of_other_programs_do_not_sign_out(odd: str) -> None:
    for cookies in (f"{odd}; {COOKIE}={issued(KEY, 0)}", f"{COOKIE}={issued(KEY, 0)};{odd}"):
        assert holder_of(KnownKeys([KEY]), {"cookie": cookies}, 1) is KEY


def test_a_session_ends_by_itself_and_with_its_secret() -> None:
    headers = {"cookie": f"{COOKIE}={issued(KEY, 0)}"}
    assert holder_of(KnownKeys([KEY]), headers, LASTS_S - 1) is KEY
    assert holder_of(KnownKeys([KEY]), headers, LASTS_S) is None
    assert holder_of(KnownKeys([Key("me", "z" * 20)]), headers, 1) is None


async def test_a_viewer_gets_its_own_requests_and_sums_of_the_others(
    offline: OfflineDoor, fake: FakeDaemon, key: str
) -> None:
    busy(fake)
    event = await first_event(offline, {"cookie": await signed_in(offline, key)})
    assert event["you"] == {"name": "me", "administers": False}
    shown = event["status"]
    assert [each["client"] for each in shown["sequences"]] == ["mine"]
    assert [each["requests"] for each in shown["waiting"]] == [1]
    assert shown["others"] == {"connections": 0, "in_flight": 4, "sequences": 1}
    assert "secret" not in json.dumps(event)
    assert str(fake.path) not in json.dumps(event)


@pytest.mark.parametrize("path", ["/card/events", "/models/sse"])
async def test_a_stream_ends_once_its_key_is_removed(
    offline: OfflineDoor, fake: FakeDaemon, folder: Path, key: str, path: str
) -> None:
    headers, answer = SSE | {"authorization": f"Bearer {key}"}, Answer()
    task = asyncio.create_task(offline.into(answer, "GET", path, b"", headers, unix=False))
    await answer.began.wait()
    before = len(answer.body)
    remove_key(folder / "http-keys", "me")
    fake.tell_status()
    await asyncio.wait_for(task, HANG_S)
    assert len(answer.body) == before


async def test_the_users_own_key_and_socket_see_all(offline: OfflineDoor, fake: FakeDaemon, own: str) -> None:
    busy(fake)
    by_key = await first_event(offline, {"authorization": f"Bearer {own}"})
    by_socket = await first_event(offline, {}, unix=True)
    for event in (by_key, by_socket):
        assert event["you"]["administers"]
        assert len(event["status"]["sequences"]) == 2
        assert event["status"]["connections"] == []


async def test_behind_a_door_that_is_no_administrator_nobody_is_one(
    offline: OfflineDoor, fake: FakeDaemon, own: str
) -> None:
    busy(fake)
    fake.answers["daemon/status"] |= {"others": {"connections": 0, "in_flight": 0, "sequences": 0}}
    event = await first_event(offline, {"authorization": f"Bearer {own}"})
    assert not event["you"]["administers"]
    assert len(event["status"]["sequences"]) == 2


def test_nothing_of_a_path_or_a_cluster_is_shown_to_a_viewer(folder: Path) -> None:
    status = msgspec.convert(sample("/run/x"), Status)
    shown = visible(status, Viewer("me", administers=False))
    assert (shown.socket, {each.path for each in shown.models}, shown.cluster) == ("", {""}, None)


async def test_all_viewers_share_one_subscription(offline: OfflineDoor, fake: FakeDaemon) -> None:
    answers = [Answer() for _ in range(5)]
    tasks = [
        asyncio.create_task(offline.into(each, "GET", "/card/events", b"", {"accept": "text/event-stream"}))
        for each in answers
    ]
    for each in answers:
        await each.began.wait()
    for each in answers:
        each.left.set()
    await asyncio.gather(*tasks)
    assert fake.accepted == 1


async def test_a_key_has_a_bound_of_streams(offline: OfflineDoor, key: str) -> None:
    headers = SSE | {"authorization": f"Bearer {key}"}
    answers = [Answer() for _ in range(MOST_STREAMS)]
    tasks = [
        asyncio.create_task(offline.into(each, "GET", "/card/events", b"", headers, unix=False)) for each in answers
    ]
    for each in answers:
        await each.began.wait()
    refused = await offline.request("GET", "/card/events", b"", headers, unix=False)
    assert (refused.status, refused.json["error"]["code"]) == (429, "too_many_streams")
    for each in answers:
        each.left.set()
    await asyncio.gather(*tasks)


async def test_a_stream_ends_with_the_daemon(offline: OfflineDoor, fake: FakeDaemon) -> None:
    answer = Answer()
    task = asyncio.create_task(offline.into(answer, "GET", "/card/events", b"", {}))
    await answer.began.wait()
    await asyncio.to_thread(fake.stop)
    await task
    assert answer.events[-1]["error"]["code"] == "daemon_unavailable"
    assert (await offline.get("/card/events")).status == 503
    fake.start()
    assert (await first_event(offline, {}, unix=True))["status"]["state"] == "serving"


async def test_a_load_shows_its_progress(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["models/load"] = {}
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    answer = await offline.request("POST", "/models/load", b'{"model":"guide"}', headers)
    assert answer.body.endswith(b'event: loaded\ndata: {"model":"guide"}\n\n')


def test_carctl_prints_a_link_with_the_key_behind_the_part_that_no_server_gets(folder: Path) -> None:
    config = folder / "card.toml"
    config.write_text('[http]\nlisten = "127.0.0.1:8321"\nkeys = "' + str(folder / "http-keys") + '"\n')
    settings = load_settings(config=config)
    secret = add_key(folder / "http-keys", "default").secret
    assert link_of(settings) == f"http://127.0.0.1:8321/#key={secret}"
    (folder / "http-keys").write_text("default a+b&c%20d#e-0123456789\n")
    assert link_of(settings).partition("#key=")[2] == "a%2Bb%26c%2520d%23e-0123456789"
    (folder / "http-keys").write_text(f"default {secret}\n")
    leading = leading_to(link_of(settings), folder / "run")
    assert f"url=http://127.0.0.1:8321/#key={secret}" in leading.read_text()
    assert leading.stat().st_mode & 0o777 == 0o600


def test_without_a_port_carctl_says_how_a_browser_gets_one(folder: Path) -> None:
    config = folder / "card.toml"
    config.write_text("")
    with pytest.raises(WrongUse, match="carctl http enable"):
        link_of(load_settings(config=config))


def test_a_browser_opens_only_with_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert not has_screen({})
    assert has_screen({"DISPLAY": ":0"})
    assert has_screen({"WAYLAND_DISPLAY": "wayland-0"})


def test_a_person_sees_its_own_requests_and_administers_nothing_whatever_its_name() -> None:
    viewer = viewer_of(Key("@default", "", "default"))
    status = msgspec.convert(sample("/run/x"), Status)
    first = msgspec.structs.replace(status.sequences[0], person="default", tenant=None)
    other = msgspec.structs.replace(first, person=None, tenant="default")
    seen = visible(msgspec.structs.replace(status, sequences=[first, other]), viewer)
    assert (viewer.administers, seen.sequences, seen.models[0].path) == (False, [first], "")


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/models/load", {"model": "guide"}, "not_permitted"),
        ("/v1/models/unload", {"model": "guide"}, "not_permitted"),
        ("/api/generate", {"model": "guide", "keep_alive": 0}, None),
    ],
)
async def test_a_person_changes_no_models_by_key_or_by_session(
    folder: Path, fake: FakeDaemon, path: str, body: dict[str, Any], code: str | None
) -> None:
    fake.answers |= {"models/load": {}, "models/unload": {}}
    secret, config = "card-" + "p" * 20, folder / "card.toml"
    config.write_text(f'[people.ada]\nkey = "{digest_of(secret)}"\n')
    add_key(folder / "http-keys", "app")
    async with OfflineDoor(fake.path, folder / "http-keys") as door:
        headers = ORIGIN | {"host": HOST}
        for carried in ({"authorization": f"Bearer {secret}"}, {"cookie": await signed_in(door, secret)}):
            answer = await door.request("POST", path, json.dumps(body).encode(), headers | carried, unix=False)
            assert answer.status == 403
            assert answer.json["error"]["code"] == code if code else "people change no models" in answer.json["error"]
        # Its answers load a model as they need it, and unload none.
        once = json.dumps({"model": "guide", "prompt": "Hi", "keep_alive": 0, "stream": False}).encode()
        headers["authorization"] = f"Bearer {secret}"
        assert (await door.request("POST", "/api/generate", once, headers, unix=False)).status == 200
        cold = json.dumps({"model": "guide"}).encode()
        assert (await door.request("POST", "/api/generate", cold, headers, unix=False)).status == 200
    assert not [call for call in fake.calls if call.method in ("models/load", "models/unload")]


async def test_a_person_gets_its_own_usage_the_users_own_key_all_and_an_apps_key_none(
    folder: Path, fake: FakeDaemon
) -> None:
    fake.answers["daemon/usage"] = {"since": "2026-01-01", "until": "2026-01-30", "total": {}, "rows": []}
    secret, config = "card-" + "p" * 20, folder / "card.toml"
    config.write_text(f'[people.ada]\nkey = "{digest_of(secret)}"\n')
    app, own = (add_key(folder / "http-keys", name).secret for name in ("app", "default"))
    async with OfflineDoor(fake.path, folder / "http-keys") as door:

        def asked(key: str, path: str = "/card/usage") -> Coroutine[Any, Any, Answer]:
            return door.request("GET", path, b"", {"host": HOST, "authorization": f"Bearer {key}"}, unix=False)

        refused = await asked(app)
        assert (refused.status, refused.json["error"]["code"], fake.calls) == (403, "not_permitted", [])
        answer = await asked(secret, "/card/usage?by=app&since=2026-01-02")
        assert answer.json["until"] == "2026-01-30"
        assert fake.params("daemon/usage") == {"by": ["app"], "since": "2026-01-02", "person": "ada"}
        await asked(secret, "/card/usage?by=app&by=day")
        assert fake.params("daemon/usage") == {"by": ["app", "day"], "person": "ada"}
        assert (await asked(own)).status == 200
    assert b"person" not in fake.calls[-1].params
