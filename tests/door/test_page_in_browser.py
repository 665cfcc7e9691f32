"""The page in Debian's Chromium; skipped without it or without Playwright."""

import base64
import json
import shutil
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import model
from tests.client.samples import status as sample
from tests.door.support import DoorProcess, door_before
from tests.door.test_openai_client import PNG
from tests.door.test_page import sequence, waiting
from tests.e2e.support import Daemon, endless
from tests.pace import HANG_S, lateness_beside

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and find_spec("playwright")), reason="needs chromium and playwright"),
]
ATTACK = "<img src=x onerror=\"document.title='attacked'\"><script>document.title='attacked'</script>"
HIDE = """is => {
    Object.defineProperty(document, "hidden", { value: is, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
# Notes when a row with a text is there.
APPEARANCE = """text => new MutationObserver(() => {
    const shown = document.querySelector("#running").textContent.includes(text);
    if (shown) window.appeared ??= Date.now();
}).observe(document.querySelector("#running"), { childList: true, characterData: true, subtree: true })"""
SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for all tests of this file."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # The sandbox of Chromium needs a user that is not root.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of 360 px in the dark, with cookies of its own; an error of its scripts fails the test."""
    errors: list[str] = []
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    context.set_default_timeout(HANG_S * 1000)
    opened = context.new_page()
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda line: errors.append(line.text) if "Content Security Policy" in line.text else None)
    yield opened
    context.close()
    assert errors == []


@pytest.fixture
def shared(folder: Path, served: Daemon) -> Iterator[DoorProcess]:
    """A door for which a test makes keys."""
    with door_before(folder, served.path) as door:
        yield door


def enter(page: Any, door: DoorProcess, view: str = "now") -> None:
    """Open the page by a link with a key, and wait for a view."""
    page.goto(f"{door.url}/#key={door.key}")
    page.click(f"nav a[href='#{view}']")
    page.wait_for_selector(f"#{view}:visible")


def shows(page: Any, selector: str, text: str) -> None:
    """Wait until an element has a text in it."""
    page.wait_for_function(
        "([where, what]) => [...document.querySelectorAll(where)].some((each) => each.textContent.includes(what))",
        arg=[selector, text],
    )


def test_a_wrong_key_is_refused_and_the_right_one_is_kept(page: Any, door: DoorProcess) -> None:
    page.goto(door.url)
    page.fill("#key", "wrong-key-wrong-key")
    page.keyboard.press("Enter")
    shows(page, "#refused", "not one of the door's")
    page.fill("#key", door.key)
    page.keyboard.press("Enter")
    page.wait_for_selector("#now:visible")
    page.reload()
    page.wait_for_selector("#now:visible")
    assert door.key not in page.evaluate(
        "JSON.stringify([document.cookie, localStorage, sessionStorage, location.href])"
    )
    page.click("#leave")
    page.wait_for_selector("#sign-in:visible")
    page.reload()
    page.wait_for_selector("#sign-in:visible")


def test_a_link_signs_in_and_leaves_no_key_in_the_address(page: Any, door: DoorProcess) -> None:
    enter(page, door)
    assert page.url in (f"{door.url}/", f"{door.url}/#now")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def chats(page: Any, text: str) -> None:
    page.click("nav a[href='#talk']")
    page.fill("#prompt", text)
    page.click("#send")
    page.wait_for_selector("#send:visible")
    shows(page, "#messages p", text)


def test_nothing_of_a_person_stays_in_a_tab_whose_key_was_removed(page: Any, shared: DoorProcess) -> None:
    page.goto(f"{shared.url}/#key={shared.add_key('bob')}")
    shows(page, "#state", "as bob")
    chats(page, "a secret of bob")
    shared.remove_key("bob")
    page.wait_for_selector("#sign-in:visible")
    assert "secret" not in page.content()
    page.fill("#key", shared.add_key("anna"))
    page.keyboard.press("Enter")
    shows(page, "#state", "as anna")
    with page.expect_request("**/chat/completions") as sent:
        chats(page, "a question of anna")
    assert "secret" not in sent.value.post_data


def test_a_tab_follows_the_session_that_another_tab_changes(page: Any, shared: DoorProcess) -> None:
    page.goto(f"{shared.url}/#key={shared.add_key('anna')}")
    shows(page, "#state", "as anna")
    chats(page, "a secret of anna")
    other = page.context.new_page()
    other.goto(shared.url)
    other.click("#leave")
    page.wait_for_selector("#sign-in:visible")
    other.fill("#key", shared.add_key("bob"))
    other.keyboard.press("Enter")
    shows(other, "#state", "as bob")
    shows(page, "#state", "as bob")
    assert "secret" not in page.content()


def test_a_link_signs_in_a_tab_that_has_the_page_open(page: Any, shared: DoorProcess) -> None:
    page.goto(shared.url)
    page.wait_for_selector("#sign-in:visible")
    for name in ("anna", "bob"):
        key = shared.add_key(name)
        page.evaluate("key => { location.hash = `key=${key}` }", key)
        shows(page, "#state", f"as {name}")
        assert key not in page.url


def test_a_link_with_a_wrong_key_is_refused_aloud_and_leaves_the_session(page: Any, shared: DoorProcess) -> None:
    page.goto(f"{shared.url}/#key={shared.add_key('anna')}")
    shows(page, "#state", "as anna")
    page.evaluate("location.hash = 'key=wrong-key-wrong-key'")
    shows(page, "#refused", "not one of the door's")
    page.goto("about:blank")
    page.goto(f"{shared.url}/#key=wrong-key-wrong-key")
    shows(page, "#refused", "not one of the door's")
    shows(page, "#state", "as anna")


def test_a_refused_question_leaves_no_empty_answer(page: Any, door: DoorProcess) -> None:
    enter(page, door, "talk")
    page.fill("#prompt", "word " * 20_000)
    page.keyboard.press("Enter")
    shows(page, "#talk-state", "tokens")
    page.wait_for_selector("#send:visible")
    assert page.locator("#messages h3").all_text_contents() == ["You"]


def test_a_request_of_another_app_appears_and_goes(page: Any, door: DoorProcess, served: Daemon) -> None:
    enter(page, door)
    shows(page, "#running", "Nothing runs.")
    with served.connect() as client:
        client.send("infer_stream", endless(client="the editor"), 1)
        shows(page, "#running td", "the editor")
    shows(page, "#running", "Nothing runs.")


@pytest.mark.alone
def test_a_request_of_another_app_appears_within_half_a_second(page: Any, door: DoorProcess, served: Daemon) -> None:
    enter(page, door)
    shows(page, "#running", "Nothing runs.")
    page.evaluate(APPEARANCE, "the editor")
    with served.connect() as client, lateness_beside() as late:
        began = time.time()
        client.send("infer_stream", endless(client="the editor"), 1)
        page.wait_for_function("() => window.appeared")
        took = page.evaluate("window.appeared") / 1000 - began
    assert took < 0.5 * max(late)


def test_a_model_is_unloaded_and_loaded(page: Any, door: DoorProcess, served: Daemon) -> None:
    enter(page, door, "models")
    page.click("#model-list button:has-text('Unload')")
    shows(page, "#model-list p", "unloaded")
    page.click("#model-list button:text-is('Load')")
    shows(page, "#model-list p", "ready")
    served.ready()


def test_a_load_is_seen_while_it_lasts(scripted_page: tuple[Any, DoorProcess, FakeDaemon]) -> None:
    page, door, fake = scripted_page
    models = fake.answers["daemon/status"]["models"]
    fake.answers["daemon/status"] |= {"models": [models[0] | {"state": "unloaded"}]}
    fake.silent = {"models/load"}
    enter(page, door, "models")
    page.click("#model-list button:text-is('Load')")
    fake.load_on(1, 4)
    page.wait_for_function("() => document.querySelector('#model-list progress').value === 0.25")
    assert page.locator("#model-list progress").is_visible()
    assert page.locator("#model-list button").is_disabled()
    fake.load_on(3, 4)
    page.wait_for_function("() => document.querySelector('#model-list progress').value === 0.75")
    fake.loaded()
    page.wait_for_selector("#model-list progress", state="hidden")


def test_an_answer_streams(page: Any, door: DoorProcess) -> None:
    enter(page, door, "talk")
    page.fill("#prompt", "What is card?")
    page.keyboard.press("Enter")
    shows(page, "#messages article p", "hosts language models")
    page.wait_for_selector("#send:visible")


def test_a_stopped_answer_ends_at_the_daemon(scripted_page: tuple[Any, DoorProcess, FakeDaemon]) -> None:
    page, door, fake = scripted_page
    fake.silent_after = 1
    enter(page, door, "talk")
    page.fill("#prompt", "Go on")
    page.click("#send")
    shows(page, "#messages article p", "Hel")
    gone = fake.gone
    page.click("#stop")
    shows(page, "#talk-state", "Stopped.")
    fake.wait_until_gone(gone + 1)  # the end of its connection ends a request
    page.wait_for_selector("#send:visible")


def test_thoughts_are_folded_beside_the_answer(scripted_page: tuple[Any, DoorProcess, FakeDaemon]) -> None:
    page, door, fake = scripted_page
    fake.pieces = [{"reasoning": "Hm, "}, {"reasoning": "a greeting."}, {"text": "Hello."}]
    enter(page, door, "talk")
    page.fill("#prompt", "Hi")
    page.click("#send")
    shows(page, "#messages article > p", "Hello.")
    thoughts = page.locator("#messages details p")
    assert (thoughts.text_content(), thoughts.is_visible()) == ("Hm, a greeting.", False)
    page.focus("#messages summary")
    page.keyboard.press("Enter")
    thoughts.wait_for(state="visible")
    page.fill("#prompt", "And you?")
    page.click("#send")
    page.wait_for_function("() => document.querySelectorAll('#messages article').length === 4")
    fake.wait_for("infer_stream", 2)
    said = [(each["role"], each["content"]) for each in fake.params("infer_stream")["messages"]]
    assert said == [("user", "Hi"), ("assistant", "Hello."), ("user", "And you?")]


def test_an_image_goes_to_a_model_that_reads_images_and_to_no_other(
    scripted_page: tuple[Any, DoorProcess, FakeDaemon], folder: Path
) -> None:
    page, door, fake = scripted_page
    models = fake.answers["daemon/status"]["models"]
    reading = models[0] | {"name": "eyes", "can": ["chat", "images"], "default": False}
    fake.answers["daemon/status"] |= {"models": [models[0] | {"can": ["chat"]}, reading]}
    fake.answers["models/list"] = {"models": [model(), model(name="eyes", can=("chat", "images"))]}
    picture = folder / "dot.png"
    picture.write_bytes(base64.b64decode(PNG))
    enter(page, door, "talk")
    assert page.locator("#image-row").is_hidden()
    page.select_option("#model", "eyes")
    page.wait_for_selector("#image-row:visible")
    page.set_input_files("#image", str(picture))
    page.fill("#prompt", "What is it?")
    page.click("#send")
    shows(page, "#messages article p", "dot.png")
    fake.wait_for("infer_stream")
    parts = fake.params("infer_stream")["messages"][0]["content"]
    assert parts == [{"type": "image", "data": PNG}, {"type": "text", "text": "What is it?"}]


@pytest.fixture
def scripted_page(page: Any, fake: FakeDaemon, folder: Path) -> Iterator[tuple[Any, DoorProcess, FakeDaemon]]:
    """The page of a door in front of the fake daemon."""
    (folder / "door").mkdir()
    with door_before(folder / "door", fake.path) as door:
        yield page, door, fake
        page.close()


def test_usage_is_shown_by_day_and_by_app(scripted_page: tuple[Any, DoorProcess, FakeDaemon]) -> None:
    page, door, fake = scripted_page
    row = {
        "completed": 3,
        "failed": 1,
        "computed_tokens": 1200,
        "completion_tokens": 34,
        "app": ATTACK,
        "day": "2026-01-30",
    }
    fake.answers["daemon/usage"] = {"since": "2026-01-01", "until": "2026-01-30", "total": row, "rows": [row]}
    enter(page, door, "usage")
    shows(page, "#usage-rows tr", "2026-01-30")
    page.focus("#usage-by")
    page.keyboard.type("app")
    shows(page, "#usage-rows th", ATTACK)
    assert fake.params("daemon/usage")["by"] == ["app"]
    cells = page.locator("#usage-rows tr").first.locator("td").all_text_contents()
    assert cells[:3] == ["4", "0", "1,234"]
    assert page.locator("#usage-rows meter").get_attribute("max") == "1234"
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.title() == "card"


def test_a_lost_daemon_is_named_and_its_return_seen(scripted_page: tuple[Any, DoorProcess, FakeDaemon]) -> None:
    page, door, fake = scripted_page
    enter(page, door)
    shows(page, "#state", "Live")
    fake.stop()
    page.wait_for_selector("#state.bad")
    fake.start()
    shows(page, "#state", "Live")


def test_words_of_strangers_stay_text(scripted_page: tuple[Any, DoorProcess, FakeDaemon]) -> None:
    page, door, fake = scripted_page
    attacked = json.loads(json.dumps(sample(str(fake.path))).replace("guide", "X"))
    attacked["models"] = [each | {"name": ATTACK, "reason": ATTACK} for each in attacked["models"]]
    attacked["capacity"] |= {"reason": ATTACK, "model": ATTACK}
    attacked["sequences"] = [sequence(ATTACK, ATTACK)]
    fake.answers["daemon/status"] = attacked
    fake.answers["models/list"] = {"models": [model() | {"name": ATTACK}]}
    fake.pieces = [ATTACK[:9], ATTACK[9:]]
    enter(page, door)
    shows(page, "#running td", ATTACK)
    page.click("nav a[href='#models']")
    shows(page, "#model-list h3", ATTACK)
    page.click("nav a[href='#talk']")
    page.fill("#prompt", ATTACK)
    page.click("#send")
    page.wait_for_function(
        "what => [...document.querySelectorAll('article p')].filter((e) => e.textContent === what).length", arg=ATTACK
    )
    assert page.locator("img, main script").count() == 0
    assert page.title() == "card"


def test_two_hundred_requests_are_shown(scripted_page: tuple[Any, DoorProcess, FakeDaemon]) -> None:
    page, door, fake = scripted_page
    many = [sequence(None, f"app {number}") for number in range(200)]
    fake.answers["daemon/status"] = sample(str(fake.path)) | {"sequences": many}
    enter(page, door)
    shows(page, "#running td", "app 199")
    assert page.locator("#running tr").count() == 200


def test_what_waits_is_shown_with_its_place_in_the_queue_of_all(
    scripted_page: tuple[Any, DoorProcess, FakeDaemon],
) -> None:
    page, door, fake = scripted_page
    fake.answers["daemon/status"] = sample(str(fake.path)) | {"waiting": [waiting(None, 2) | {"position": 4}]}
    enter(page, door)
    shows(page, "#waiting td", "4")
    assert page.locator("#waiting tr").first.locator("td").all_text_contents()[:2] == ["4", "2"]


def test_the_stream_stops_while_the_page_is_hidden(scripted_page: tuple[Any, DoorProcess, FakeDaemon]) -> None:
    page, door, fake = scripted_page
    enter(page, door)
    shows(page, "#state", "Live")
    page.evaluate(HIDE, True)
    shows(page, "#state", "Paused")
    fake.wait_until_gone()
    page.evaluate(HIDE, False)
    shows(page, "#state", "Live")


@pytest.mark.skipif(not find_spec("axe_playwright_python"), reason="needs axe-playwright-python")
@pytest.mark.parametrize("view", ["now", "models", "usage", "talk"])
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_nothing_serious(page: Any, door: DoorProcess, view: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme=scheme)
    enter(page, door, view)
    found = Axe().run(page).response["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found if each["impact"] in SERIOUS] == []
