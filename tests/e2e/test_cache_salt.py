"""Prefixes of one user are shared by its sessions, and by no two salts."""

from tests.e2e.support import RawClient

SYSTEM = "The rules of the house are these: knock, wait, speak softly, and never feed the cat twice. " * 3


def cached(client: RawClient, question: str, **options: object) -> int:
    params = {"prompt": f"{SYSTEM}{question}", "max_tokens": 2, "temperature": 0, **options}
    return int(client.result("infer", params)["usage"]["cached_tokens"])


def test_sessions_share_the_prefix_of_their_user(small: RawClient) -> None:
    assert cached(small, "Who?", cache_salt="sessions", session="first") == 0
    assert cached(small, "What?", cache_salt="sessions", session="second") > 100


def test_salts_share_nothing(small: RawClient) -> None:
    assert cached(small, "Who?", cache_salt="one", session="same") == 0
    assert cached(small, "Who?", cache_salt="two", session="same") == 0
    assert cached(small, "Who?", cache_salt="one") > 100
    assert cached(small, "Who?", session="same") == 0
