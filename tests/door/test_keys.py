"""Keys: made once, named, private, and compared in constant time."""

import os
import stat
import threading
from pathlib import Path

import pytest

from car_client.door.keys import (
    Key,
    KeyRing,
    KeysError,
    KnownKeys,
    add_key,
    digest_of,
    ensure_keys,
    read_keys,
    remove_key,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the keys, in a folder that does not exist yet."""
    return tmp_path / "car" / "http-keys"


def test_the_first_start_makes_one_key_that_only_this_user_may_read(path: Path) -> None:
    (key,) = ensure_keys(path)
    assert key.name == "default"
    assert key.salt is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_keys(path) == [key]


def test_named_keys_are_told_apart_and_salt_their_caches(path: Path) -> None:
    first, second = ensure_keys(path)[0], add_key(path, "obsidian")
    assert second.salt == "obsidian"
    keys = read_keys(path)
    assert KnownKeys(keys).holder(second.secret) == second
    assert KnownKeys(keys).holder(first.secret) == first
    for wrong in ("", first.secret[:-1], first.secret + "x", "\udcff"):
        assert KnownKeys(keys).holder(wrong) is None
    assert add_key(path, "obsidian") == second


def test_a_removed_key_admits_nothing_from_then_on(path: Path) -> None:
    ring = KeyRing(path)
    key = add_key(path, "zed")
    assert ring.keys() == [key]
    assert remove_key(path, "zed")
    assert not remove_key(path, "zed")
    assert ring.keys() == []


def test_a_key_is_never_part_of_its_repr(path: Path) -> None:
    key = add_key(path, "zed")
    assert key.secret not in f"{key!r} {[key]}"


def test_a_file_that_others_may_read_is_refused(path: Path) -> None:
    ensure_keys(path)
    path.chmod(0o640)
    with pytest.raises(KeysError, match="chmod 600"):
        read_keys(path)


@pytest.mark.parametrize("text", ["default short\n", "default\n", "a b " + "x" * 20 + "\n", "\0\n"])
def test_a_malformed_line_is_named(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text("# keys\n" + text)
    path.chmod(0o600)
    with pytest.raises(KeysError, match="line 2"):
        read_keys(path)


def test_a_link_in_place_of_the_file_is_refused(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    target = tmp_path / "target"
    target.write_text("default " + "x" * 20)
    target.chmod(0o600)
    path.symlink_to(target)
    with pytest.raises(KeysError, match="cannot read"):
        read_keys(path)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a/b", "ä"])
def test_a_name_that_is_not_a_label_is_refused(path: Path, name: str) -> None:
    with pytest.raises(KeysError, match="cannot name a key"):
        add_key(path, name)


def test_keys_added_at_once_are_all_kept(path: Path) -> None:
    names = [f"app{number}" for number in range(12)]
    threads = [threading.Thread(target=add_key, args=(path, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key.name for key in read_keys(path)) == sorted(names)


def test_a_changed_file_is_read_again_without_a_restart(path: Path) -> None:
    ring = KeyRing(path)
    assert ring.keys() == []
    key = add_key(path, "one")
    assert ring.keys() == [key]
    path.write_text(f"one {key.secret}\n\n")
    assert ring.keys() == [key]
    assert remove_key(path, "one")
    assert ring.keys() == []


def test_a_file_that_is_opened_to_others_after_it_was_read_admits_no_key(path: Path) -> None:
    ring = KeyRing(path)
    key = add_key(path, "one")
    assert ring.keys() == [key]
    path.chmod(0o644)
    with pytest.raises(KeysError, match="chmod 600"):
        ring.keys()
    path.chmod(0o600)
    assert ring.keys() == [key]


@pytest.mark.skipif(os.getuid() != 0, reason="gives the file to another user")
def test_a_file_that_was_given_to_another_user_after_it_was_read_admits_no_key(path: Path) -> None:
    ring = KeyRing(path)
    add_key(path, "one")
    assert ring.keys()
    os.chown(path, 12345, -1)
    with pytest.raises(KeysError, match="belongs to another user"):
        ring.keys()


def test_a_file_that_was_replaced_within_one_tick_of_its_time_is_read_again(path: Path) -> None:
    ring = KeyRing(path)
    key = add_key(path, "one")
    assert ring.keys() == [key]
    facts, other = path.stat(), "x" * len(key.secret)
    path.write_text(path.read_text().replace(key.secret, other))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    (changed,) = ring.keys()
    assert changed.secret == other


def test_a_folder_in_place_of_the_file_is_refused_with_what_to_do(path: Path) -> None:
    path.mkdir(parents=True)
    for use in (read_keys, ensure_keys, lambda place: add_key(place, "one"), lambda place: KeyRing(place).keys()):
        with pytest.raises(KeysError, match=r"not a regular file: remove it, then run `carctl http key`"):
            use(path)


def test_comparing_takes_every_key(path: Path) -> None:
    twice = [Key("a", "s" * 20), Key("b", "s" * 20)]
    assert KnownKeys(twice).holder("s" * 20) == twice[-1]


def test_sessions_of_people_outlive_the_door_and_end_with_the_users_own_key(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "card.toml"
    config.write_text(f'[people.anna]\nkey = "{digest_of("a key")}"\n')
    add_key(path, "default")

    def secret() -> str:
        """Return what signs the sessions of anna at a door that was just started."""
        anna = KeyRing(path, config).known().named("@anna")
        assert anna is not None
        return anna.secret

    before = secret()
    assert secret() == before
    remove_key(path, "default")
    add_key(path, "default")
    assert secret() != before


def test_while_the_configuration_has_a_mistake_the_people_stay_as_they_were(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "card.toml"
    config.write_text(f'[people.anna]\nkey = "{digest_of("a key")}"\n')
    ring = KeyRing(path, config)
    assert ring.known().holder("a key") is not None
    config.write_text("x = \n")
    assert ring.known().holder("a key") is not None
    config.write_text(f'[people.anna]\nkey = "{digest_of("a key")}"\n[people.twin]\nkey = "{digest_of("a key")}"\n')
    found = ring.known().holder("a key")
    assert (found and found.name) == "@anna"
    with pytest.raises(KeysError, match="two people have one key"):
        KeyRing(path, config).keys()
    config.write_text("")
    assert ring.known().holder("a key") is None
