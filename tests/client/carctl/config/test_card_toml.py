"""Changes to card.toml: what a person wrote stays, and a file that is not understood is never overwritten."""

import os
import threading
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_client.carctl.config.card_toml import CardToml, ConfigUnwritable, config_path


def change(path: Path, failing: type[Exception] | None = None) -> None:
    """Add a model as a command does, which may fail after it."""
    with CardToml(path) as config:
        config.add_model("new", {"path": "/b"})
        config.use_model("new")
        config.save()
        if failing:
            raise failing


HEADS = st.sampled_from(["", "# The machine in the hall.\n\n", "# Says\n# two lines.\n", "\n\n"])
DEFAULTS = st.sampled_from(["", "default_model = 'old'  # the small one\n", 'default_model="old"\n\n'])
# Tabs, arrays of tables, inline tables and dotted keys among them.
TABLES = st.sampled_from(
    [
        "[daemon]\nlog_level = 'info' # quiet enough\n\n",
        "[queue]\n  limit = 10\n  # overflow = 'block'\n",
        "[capacity]\nsequences=4\n",
        "[fairness]\nweights = { 1000 = 2, 1001 = 0.5 }\n",
        "\t[metrics]\t# tabs\n\tlisten\t=\t'127.0.0.1:1'\n",
        "[[seats]]\nname = 'a' # first\n[[seats]]\nname = 'b'\n",
        '[cluster]\nlabels.pool = \'x\'\nlabels.\'zone 1\' = """\n[models.old]\n"""\n',
    ]
)
MODELS = st.sampled_from(
    [
        "[models.old]\npath = '/a b.gguf' # of the laptop\n\n",
        "[models]\n[models.old]\npath = '/a.gguf'\naliases = [\n  'x', # one\n  'y',\n]\n",
        "[models.\"a.b c\"]\nhf = 'o/r/f.gguf'\n[models.old]\npath = '/a.gguf'\n",
        "[models.old.adapters]\nx = '/x'\n[models.old]\npath = '/a'\n",
    ]
)
FILES = st.builds(
    lambda head, default, before, models, after, end, newline: (
        head + default + "".join(before) + models + "".join(set(after) - set(before)) + end
    ).replace("\n", newline),
    HEADS,
    DEFAULTS,
    st.lists(TABLES, max_size=2, unique=True),
    st.one_of(st.just(""), MODELS),
    st.lists(TABLES, max_size=1),
    st.sampled_from(["", "# The end.\n", "# The end, without a newline.", "\n"]),
    st.sampled_from(["\n", "\r\n"]),
)
NAMES = st.one_of(st.sampled_from(["new", "a.b", "SmolLM2 135M", 'quo"te', "日本"]), st.text(min_size=1, max_size=8))


@given(text=FILES, name=NAMES, use=st.booleans())
def test_a_change_keeps_every_line_in_its_order_and_the_meaning_of_all_else(
    text: str, name: str, use: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("config") / "card.toml"
    path.write_text(text, encoding="utf-8", newline="")
    before = tomllib.loads(text)
    with CardToml(path) as config:
        config.add_model(name, {"path": "/new model.gguf", "sequences": 2})
        if use:
            config.use_model(name)
        config.save()
    raw = path.read_bytes().decode()
    written = path.read_text(encoding="utf-8")
    expected = {**before, "models": {**before.get("models", {}), name: {"path": "/new model.gguf", "sequences": 2}}}
    assert tomllib.loads(written) == ({**expected, "default_model": name} if use else expected)
    assert ("\r\n" in text) == ("\r\n" in raw)
    assert raw.count("\n") == raw.count("\r\n") or "\r\n" not in raw, raw
    kept = [line for line in text.splitlines() if line.strip() and not (use and line.startswith("default_model"))]
    lines = iter(written.splitlines())
    assert all(any(line == each for each in lines) for line in kept), written
    if use and "# the small one" in text:
        assert "# the small one" in written


@pytest.mark.parametrize("text", ["default_model = ", "[models.a\n", "a = 1\na = 2\n", "\xff", "[[models]]\n"])
def test_a_file_that_is_not_understood_is_left_as_it_is(text: str, tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigUnwritable):
        change(path)
    assert path.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize("text", ["models = { old = { path = '/a' } }\n", "models.old.path = '/a'\n"])
def test_models_in_one_line_are_changed_rightly_or_not_at_all(text: str, tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text(text)
    try:
        change(path)
    except ConfigUnwritable:
        assert path.read_text() == text
    else:
        assert tomllib.loads(path.read_text())["models"] == {"old": {"path": "/a"}, "new": {"path": "/b"}}


def test_a_missing_file_and_its_folder_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "car" / "card.toml"
    with CardToml(path) as config:
        config.use_model("guide")
        config.save()
    assert path.read_text() == 'default_model = "guide"\n'
    assert path.stat().st_mode & 0o777 == 0o600


def test_mode_and_link_of_a_file_stay(tmp_path: Path) -> None:
    path, real = tmp_path / "card.toml", tmp_path / "dotfiles.toml"
    real.write_text("# mine\n")
    real.chmod(0o644)
    path.symlink_to(real)
    with CardToml(path) as config:
        config.use_model("guide")
        config.save()
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o644
    assert tomllib.loads(real.read_text()) == {"default_model": "guide"}


def test_a_read_only_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text("# mine\n")
    path.chmod(0o444)
    with pytest.raises(ConfigUnwritable, match="read-only"):
        change(path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("# mine\n", ["card.toml"])


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file away")
def test_the_owner_of_a_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text("# mine\n")
    os.chown(path, 1234, 1235)
    change(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235)


def test_an_edit_that_was_saved_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text("# mine\n")
    config = CardToml(path)
    config.use_model("guide")
    path.write_text("# mine, edited\n")
    with pytest.raises(ConfigUnwritable, match="run this again"):
        config.save()
    assert path.read_text() == "# mine, edited\n"


def test_of_changes_at_once_none_is_lost_in_silence(tmp_path: Path) -> None:
    path, said = tmp_path / "card.toml", []
    start = threading.Barrier(8)

    def add(name: str) -> None:
        config = CardToml(path)
        config.set_person(name, {"key": "k"})
        start.wait()
        try:
            config.save()
            said.append(name)
        except ConfigUnwritable:
            pass

    threads = [threading.Thread(target=add, args=(f"p{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(CardToml(path).people) == said
    assert len(said) == 1


@pytest.mark.parametrize("saves", [False, True])
def test_an_edit_after_the_change_is_not_taken_back(saves: bool, tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text("# mine\n")
    with CardToml(path) as config:
        config.use_model("guide")
        if saves:
            config.save()
        path.write_text("# mine, edited\n")
        config.restore()
    assert path.read_text() == "# mine, edited\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 'default_model = "guide"\n'),
        ("[daemon]\n", 'default_model = "guide"\n\n[daemon]\n'),
        ("# The hall.\r\n\r\n[daemon]\r\n", '# The hall.\r\n\r\ndefault_model = "guide"\r\n\r\n[daemon]\r\n'),
    ],
)
def test_a_line_of_its_own_stands_apart_from_tables(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_bytes(text.encode())
    with CardToml(path) as config:
        config.use_model("guide")
        config.save()
    assert path.read_bytes().decode() == expected


@pytest.mark.parametrize("before", [None, b"# mine\n"])
def test_a_failure_after_the_change_brings_the_old_file_back(before: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(RuntimeError):
        change(path, RuntimeError)
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "car").write_text("a file, not a folder")
    with pytest.raises(ConfigUnwritable, match=r"card\.toml"):
        change(tmp_path / "car" / "card.toml")
    assert os.listdir(tmp_path) == ["car"]


def test_the_file_is_that_of_the_user_or_of_the_system_service(tmp_path: Path) -> None:
    assert config_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/car/card.toml")
    assert config_path({"XDG_CONFIG_HOME": "/x"}, system=True) == Path("/etc/car/card.toml")


HTTP = st.sampled_from(
    [
        "",
        "[http]\n",
        "[http] # the door\nhosts = ['laptop'] # mine\nlisten = 'unix:/a' # old\n\n",
        "[http]\nlisten = [\n  '127.0.0.1:1', # one\n]\nno_key = false\n",
        "http = { no_key = true }\n",
        "http.no_key = true # dotted\n",
    ]
)


@given(
    door=HTTP,
    text=FILES,
    addresses=st.lists(st.sampled_from(["127.0.0.1:8321", "unix:/b c", "[::1]:2"]), min_size=1, unique=True),
)
def test_the_doors_addresses_change_and_nothing_else(
    door: str, text: str, addresses: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    newline = "\r\n" if "\r\n" in text else "\n"
    door = door.replace("\n", newline)
    whole = door + text if door.startswith("http") else text + newline + door
    path = tmp_path_factory.mktemp("config") / "card.toml"
    path.write_text(whole, encoding="utf-8", newline="")
    before = tomllib.loads(whole)
    with CardToml(path) as config:
        listen = addresses[0] if len(addresses) == 1 else addresses
        config.set_http({"listen": listen})
        config.save()
    written = path.read_text(encoding="utf-8")
    assert tomllib.loads(written) == {**before, "http": {**before.get("http", {}), "listen": listen}}
    for comment in ("# the door", "# mine", "# dotted", "# of the laptop", "# quiet enough"):
        assert (comment in whole) == (comment in written)


def test_a_door_that_is_not_a_table_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text("http = 8321\n")
    with pytest.raises(ConfigUnwritable, match=r"write \[http\]"), CardToml(path) as config:
        config.set_http({"listen": "127.0.0.1:8321"})
    assert path.read_text() == "http = 8321\n"
