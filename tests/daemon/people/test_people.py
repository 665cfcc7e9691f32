"""People of the configuration: their identities, and the processes that may name them."""

import os

import pytest

from car_daemon.people.identity import Identity
from car_daemon.people.people import NOT_A_DELEGATE, UNKNOWN_PERSON, People, PersonTable
from car_protocol.errors import RpcError

DELEGATE, STRANGER = 70_001, 70_002


def people(*names: str, **weights: float) -> People:
    tables = {name: PersonTable() for name in names} | {name: PersonTable(weight) for name, weight in weights.items()}
    return People([DELEGATE], tables)


def why(known: People, uid: int, person: str) -> str:
    with pytest.raises(RpcError) as caught:
        known.identity(uid, person)
    assert caught.value.reason == "not_permitted"
    return str(caught.value.data["why"])


@pytest.mark.parametrize("uid", [0, os.getuid(), DELEGATE])
def test_root_the_daemons_user_and_delegates_name_people(uid: int) -> None:
    known = people("anna", "bob")
    anna, bob = known.identity(uid, "anna"), known.identity(uid, "bob")
    assert len({anna.number, bob.number, uid}) == 3
    assert known.identity(uid, "anna") == anna
    assert min(anna.number, bob.number) >= 2**32


def test_other_users_name_no_person_and_nobody_names_a_person_that_does_not_exist() -> None:
    assert why(people("anna"), STRANGER, "anna") == NOT_A_DELEGATE
    assert why(people("anna"), DELEGATE, "eve") == UNKNOWN_PERSON


def test_a_person_of_another_delegate_is_another_identity() -> None:
    known = people("anna")
    mine, theirs = known.identity(DELEGATE, "anna"), known.identity(0, "anna")
    assert (mine.number, mine.namespace) != (theirs.number, theirs.namespace)


def test_a_removed_person_is_refused_at_the_next_call_and_gets_another_number_when_it_is_back() -> None:
    known = people("anna", "bob")
    anna, bob = known.identity(DELEGATE, "anna"), known.identity(DELEGATE, "bob")
    known.configure([DELEGATE], {"bob": PersonTable()})
    assert why(known, DELEGATE, "anna") == UNKNOWN_PERSON
    known.configure([DELEGATE], {"anna": PersonTable(), "bob": PersonTable()})
    assert known.identity(DELEGATE, "anna").number not in (anna.number, bob.number)
    assert known.identity(DELEGATE, "bob") == bob


def test_a_removed_delegate_names_no_person() -> None:
    known = people("anna")
    known.configure([], {"anna": PersonTable()})
    assert why(known, DELEGATE, "anna") == NOT_A_DELEGATE


def test_weights_are_those_of_every_delegates_identity() -> None:
    known = people("anna", bob=4.0)
    uids = {0, os.getuid(), DELEGATE}
    assert known.weights() == {known.identity(uid, "bob").number: 4.0 for uid in uids}


def test_no_salt_of_a_user_makes_the_namespace_of_a_person() -> None:
    anna = people("anna").identity(DELEGATE, "anna")
    assert not f"{anna.namespace}:".startswith(f"{Identity(DELEGATE).namespace}:")
    assert ":" not in anna.namespace


def test_a_person_of_a_name_that_another_had_finds_nothing_of_the_other_in_the_caches() -> None:
    first = People([DELEGATE], {"anna": PersonTable(key="a" * 64), "bob": PersonTable(key="b" * 64)})
    old, bob = first.identity(DELEGATE, "anna"), first.identity(DELEGATE, "bob")
    first.configure([DELEGATE], {"anna": PersonTable(key="c" * 64), "bob": PersonTable(weight=2.0, key="b" * 64)})
    new = first.identity(DELEGATE, "anna")
    assert (new.namespace != old.namespace, new.number != old.number, new.name) == (True, True, old.name)
    assert first.identity(DELEGATE, "bob") == bob
    # After a restart too, because cells may be stored in files.
    again = People([DELEGATE], {"bob": PersonTable(key="b" * 64)})
    assert again.identity(DELEGATE, "bob").namespace == bob.namespace


def test_several_answers_are_so_many_requests_at_once() -> None:
    known = People([DELEGATE], {"anna": PersonTable(in_flight=4)})
    known.begin("anna", 3)
    with pytest.raises(RpcError) as beyond:
        known.begin("anna", 2)
    assert (beyond.value.reason, beyond.value.data["used"]) == ("quota", 3)
    known.begin("anna")
    known.end("anna", 3)
    known.begin("anna", 3)
    with pytest.raises(RpcError) as never:
        known.begin("anna", 5)
    assert (never.value.reason, never.value.data["param"]) == ("invalid_params", "n")


def test_a_person_beyond_the_tokens_of_a_day_is_refused_until_midnight() -> None:
    spent = {"@anna": 99}
    known = People(
        [DELEGATE],
        {"anna": PersonTable(tokens_per_day=100), "bob": PersonTable()},
        spent=lambda name: spent.get(name, 10**9),
        day_ends=lambda: 1000.0,
        clock=lambda: 940.0,
    )
    known.begin("anna")
    known.begin("bob")
    spent["@anna"] = 100
    with pytest.raises(RpcError) as caught:
        known.begin("anna")
    assert caught.value.data == {
        "limit": "tokens_per_day",
        "value": 100,
        "used": 100,
        "retry_after_ms": 60_000,
        "ends_at": 1000,
    }
