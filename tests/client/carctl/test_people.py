"""`carctl people`: keys are shown once, and stored as hashes in card.toml."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from car_client.door.keys import KeyRing
from car_protocol.errors import RpcError
from tests.client.carctl.command import carctl
from tests.client.fake_daemon import FakeDaemon


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of configuration with a comment and a model's table, and no daemon."""
    (tmp_path / "car").mkdir()
    (tmp_path / "car" / "card.toml").write_text("# mine\n[daemon]\nlog_level = 'info'\n")
    return tmp_path


def people(home: Path, *arguments: str) -> tuple[int, str, str]:
    env = {"XDG_CONFIG_HOME": str(home), "CAR_SOCKET": str(home / "none.sock")}
    done = carctl("people", *arguments, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_key_is_shown_once_and_admits_its_person_until_it_is_removed(home: Path) -> None:
    config = home / "car" / "card.toml"
    ring = KeyRing(home / "car" / "http-keys", config)
    code, shown, _ = people(home, "add", "anna", "--weight", "2")
    secret = shown.split()[-1]
    assert (code, secret.startswith("card-"), secret in config.read_text()) == (0, True, False)
    assert config.read_text().startswith("# mine\n")
    anna = ring.known().holder(secret)
    assert anna is not None
    assert (anna.person, anna.salt, ring.known().holder(anna.digest), ring.known().holder(anna.secret)) == (
        "anna",
        None,
        None,
        None,
    )
    assert people(home, "list") == (0, "anna  weight 2  in flight any  has a key\n", "")
    limits = ("--weight", "3", "--in-flight", "4", "--tokens-per-day", "5000", "--background")
    assert people(home, "limit", "anna", *limits)[0] == 0
    shown = people(home, "list")[1]
    assert shown == "anna  weight 3  in flight 4  5000 tokens a day  background  has a key\n"
    assert people(home, "limit", "anna", "--tokens-per-day", "none", "--no-background")[0] == 0
    assert people(home, "list")[1] == "anna  weight 3  in flight 4  has a key\n"
    assert ring.known().holder(secret) == anna
    assert people(home, "remove", "anna")[0] == 0
    assert ring.known().holder(secret) is None
    assert config.read_text().strip() == "# mine\n[daemon]\nlog_level = 'info'"


def test_a_table_with_a_mistake_is_listed_with_it(home: Path) -> None:
    with (home / "car" / "card.toml").open("a") as config:
        config.write('[people.anna]\nweight = "heavy"\n')
    assert people(home, "list") == (0, "anna  weight 'heavy': not a number  in flight any  no key\n", "")


def test_names_that_are_taken_missing_or_bad_change_nothing(home: Path) -> None:
    people(home, "add", "anna")
    before = (home / "car" / "card.toml").read_text()
    for wrong in (
        ["add", "anna"],
        ["remove", "bob"],
        ["limit", "bob", "--weight", "1"],
        ["add", "a b"],
        ["limit", "anna"],
        ["limit", "anna", "--tokens-per-day", "1234567890123"],
    ):
        code, _, error = people(home, *wrong)
        assert (code, bool(error)) == (2, True)
    assert people(home, "add", "bob", "--weight", "0")[0] == 2
    assert (home / "car" / "card.toml").read_text() == before


def test_limits_without_a_key_are_kept_and_the_person_gets_one(home: Path) -> None:
    with (home / "car" / "card.toml").open("a") as config:
        config.write("[people.anna]\nweight = 2\n")
    assert people(home, "list") == (0, "anna  weight 2  in flight any  no key\n", "")
    assert people(home, "add", "anna")[0] == 0
    assert people(home, "list")[1] == "anna  weight 2  in flight any  has a key\n"


def test_a_limit_of_a_table_without_a_key_is_lifted_as_the_person_is_added(home: Path) -> None:
    with (home / "car" / "card.toml").open("a") as config:
        config.write("[people.anna]\nin_flight = 2\n")
    assert people(home, "add", "anna", "--in-flight", "none")[0] == 0
    assert people(home, "list")[1] == "anna  weight 1  in flight any  has a key\n"
    assert people(home, "add", "bob", "--in-flight", "none")[0] == 0


def test_a_person_that_the_daemon_does_not_know_gets_no_key(home: Path, daemon: FakeDaemon) -> None:
    daemon.answers |= {"daemon/reload": {}, "daemon/why": RpcError("not_permitted", why="no such person")}
    before = (home / "car" / "card.toml").read_text()
    done = carctl("--socket", daemon.path, "people", "add", "anna", env={"XDG_CONFIG_HOME": str(home)})
    assert (done.returncode, done.stdout, b"does not read" in done.stderr) == (1, b"", True)
    assert (home / "car" / "card.toml").read_text() == before


def test_a_key_that_cannot_be_shown_is_not_kept(home: Path) -> None:
    before = (home / "car" / "card.toml").read_text()
    with open("/dev/full", "wb") as full:
        env = {"XDG_CONFIG_HOME": str(home), "CAR_SOCKET": str(home / "none.sock")}
        assert carctl("people", "add", "anna", env=env, stdout=full).returncode != 0
    assert (home / "car" / "card.toml").read_text() == before


def test_a_hash_signs_no_session(home: Path) -> None:
    people(home, "add", "anna")
    rings = [KeyRing(home / "none", home / "car" / "card.toml") for _ in range(2)]
    first, second = (ring.keys()[0] for ring in rings)
    assert (first.digest == second.digest, first.secret == second.secret, first.secret == first.digest) == (
        True,
        False,
        False,
    )


def test_people_who_are_added_at_the_same_time_all_get_their_keys(home: Path) -> None:
    names = [f"person{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        ends = list(pool.map(lambda name: people(home, "add", name), names))
    assert [(code, "changed meanwhile" in errors) for code, _, errors in ends] == [(0, False)] * len(names)
    known = KeyRing(home / "car" / "http-keys", home / "car" / "card.toml").known()
    holders = [known.holder(shown.split()[-1]) for _, shown, _ in ends]
    assert [holder and holder.person for holder in holders] == names
