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
