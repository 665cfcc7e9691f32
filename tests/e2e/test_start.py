"""The start of the daemon, and the messages of a failed one."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from car_base import guide
from tests.e2e.support import BIN, KNOWN, PATIENCE_S, greedy, running

CAPACITY = b'{"jsonrpc":"2.0","id":1,"method":"inference/capacity"}\n'


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `card` where it is expected to end by itself."""
    return subprocess.run(
        [BIN / "card", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def assert_refused(ended: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Check exit code and that the last line, the only complaint, says what to do."""
    lines = ended.stderr.splitlines()
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert lines[-1].startswith("card: ")
    assert sum(line.startswith("card: ") for line in lines) == 1
    for word in words:
        assert word in lines[-1]


def seconds_to_import_what_the_daemon_stands_on() -> float:
    """Return how long this machine takes for Python and the packages that no daemon starts without."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import asyncio, uvloop, msgspec, psutil, argparse, logging"], check=True)
    return time.monotonic() - started


@pytest.mark.alone
@pytest.mark.slow
def test_capacity_is_answered_in_thrice_the_time_of_bare_imports_while_the_model_loads(folder: Path) -> None:
    times: list[float] = []
    bare: list[float] = []
    # Other programs have the cores now and then: a daemon that is slow is so each time.
    while len(times) < 5 or min(times) >= 3 * min(bare):
        assert len(times) < 15, (times, bare)
        bare.append(seconds_to_import_what_the_daemon_stands_on())
        started = time.monotonic()
        with running(folder) as daemon, daemon.connect() as client:
            client.send_bytes(CAPACITY)
            capacity = client.receive()["result"]
            times.append(time.monotonic() - started)
        assert (capacity["state"], capacity["capacity"], capacity["declared"]) == ("loading", 1, None)


def test_requests_sent_while_the_model_loads_are_served_when_it_is_ready(folder: Path) -> None:
    with running(folder) as daemon, daemon.connect() as client:
        requests = {client.send("infer", greedy(known)): known for known in KNOWN[:12]}
        tokens = client.send("tokenize", {"text": "Hi"})
        assert client.result("inference/capacity")["state"] == "loading"
        for request, known in requests.items():
            assert client.response(request)["result"]["text"] == known.answer
        assert client.response(tokens)["result"]["tokens"]


@pytest.mark.slow
def test_a_subscriber_is_notified_of_the_declared_capacity(folder: Path) -> None:
    with running(folder, "--capacity", "3") as daemon, daemon.connect() as client:
        before = client.result("inference/capacity", {"subscribe": True})
        change = client.receive()
        assert change["method"] == "inference/capacity_changed"
        assert change["params"]["capacity"] == change["params"]["declared"] == 3
        assert change["params"]["policy"] == "flag"
        assert change["params"]["generation"] > before["generation"]


@pytest.mark.slow
def test_the_environment_wins_over_flag_and_file(folder: Path) -> None:
    (folder / "card.toml").write_text("[capacity]\nsequences = 5\n")
    arguments = ("--config", str(folder / "card.toml"), "--capacity", "4")
    with running(folder, *arguments, CAR_INFERENCE_MAX_CONCURRENT=" 2 ") as daemon, daemon.connect() as client:
        client.result("infer", greedy(KNOWN[0]))
        capacity = client.result("inference/capacity")
    assert (capacity["declared"], capacity["policy"], capacity["machine"]["limit"]) == (2, "env", 2)


@pytest.mark.slow
def test_a_bad_limit_in_the_environment_is_warned_about_and_ignored(folder: Path) -> None:
    with running(folder, CAR_INFERENCE_MAX_CONCURRENT="many") as daemon, daemon.connect() as client:
        client.result("infer", greedy(KNOWN[0]))
        assert client.result("inference/capacity")["policy"] == "measured"
    assert "CAR_INFERENCE_MAX_CONCURRENT" in daemon.log.read_text()


@pytest.mark.slow
def test_a_second_daemon_exits_75_at_once_and_the_first_is_undisturbed(folder: Path) -> None:
    with running(folder) as daemon, daemon.connect() as client:
        client.result("infer", greedy(KNOWN[0]))
        assert_refused(start("--socket", str(daemon.path)), 75, "carctl status")
        assert client.result("infer", greedy(KNOWN[1]))["text"] == KNOWN[1].answer


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--capacity", "-1"], "an integer of at least 0"),
        (["--model", "\udcff.gguf"], "not UTF-8"),
        (["--capacity", "many"], "an integer of at least 0"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--log-level", "loud"], "loud"),
        (["--threads", "-1"], "positive integer"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_64(arguments: list[str], word: str) -> None:
    assert_refused(start(*arguments), 64, word, "card --help")


def test_a_missing_model_file_is_one_line_and_exit_69(folder: Path) -> None:
    socket_path = str(folder / "card.sock")
    assert_refused(start("--socket", socket_path, "--model", str(folder / "none.gguf")), 69, "none.gguf", "--model")


@pytest.mark.parametrize("content", [b"", b"this is no model", b"GGUF" + bytes(60)])
def test_a_file_that_is_no_model_is_one_line_and_exit_69(folder: Path, content: bytes) -> None:
    model = folder / "bad.gguf"
    model.write_bytes(content)
    assert_refused(start("--socket", str(folder / "card.sock"), "--model", str(model)), 69, "bad.gguf", "GGUF")


def test_a_truncated_model_is_exit_69(folder: Path) -> None:
    model = folder / "half.gguf"
    model.write_bytes(guide.PATH.read_bytes()[:500_000])
    assert_refused(start("--socket", str(folder / "card.sock"), "--model", str(model)), 69, "half.gguf")


def test_a_too_long_socket_path_says_so(folder: Path) -> None:
    assert_refused(start("--socket", str(folder / ("s" * 200))), 64, "longer", "--socket")


def test_a_file_at_the_sockets_path_is_never_removed(folder: Path) -> None:
    path = folder / "card.sock"
    path.write_text("precious")
    assert_refused(start("--socket", str(path)), 64, "card.sock", "--socket")
    assert path.read_text() == "precious"


def test_a_socket_that_another_program_answers_on_is_left_alone(folder: Path) -> None:
    path = folder / "card.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()
        assert_refused(start("--socket", str(path)), 75)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(path))


def test_a_directory_that_others_may_write_to_is_refused(folder: Path) -> None:
    open_folder = folder / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    assert_refused(start("--socket", str(open_folder / "card.sock")), 64, "private")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[daemon]\nlog_levle = 'info'\n", ["daemon.log_levle", "daemon.log_level"]),
        ("[capacity]\nsequences = -1\n", ["capacity.sequences"]),
        ("[capacity]\nsequences = 'many'\n", ["capacity.sequences"]),
        ("defualt_model = 'x'\n", ["defualt_model", "default_model"]),
        ("default_model = 'none'\n", ["default_model", "none"]),
        ("[models.mine]\npaht = 'x'\n", ["models.mine.paht", "models.mine.path"]),
        ("= broken", ["TOML"]),
    ],
)
def test_a_bad_configuration_names_the_key_and_is_exit_78(folder: Path, text: str, words: list[str]) -> None:
    file = folder / "card.toml"
    file.write_text(text)
    assert_refused(start("--config", str(file), "--socket", str(folder / "card.sock")), 78, *words)


def test_a_missing_configuration_file_is_exit_78(folder: Path) -> None:
    assert_refused(start("--config", str(folder / "none.toml")), 78, "none.toml")


@pytest.mark.slow
def test_a_configured_model_is_served_under_its_name(folder: Path) -> None:
    shutil.copy(guide.PATH, folder / "copy.gguf")
    (folder / "card.toml").write_text(
        f'default_model = "mine"\n[models.mine]\npath = "{folder}/copy.gguf"\ncontext_tokens = 1000\nsequences = 3\n'
    )
    with running(folder, "--config", str(folder / "card.toml")) as daemon, daemon.connect() as client:
        answer = client.result("infer", greedy(KNOWN[0], model="mine"))
        assert (answer["text"], answer["model"]) == (KNOWN[0].answer, "mine")
        capacity = client.result("inference/capacity")
        assert (capacity["declared"], capacity["policy"], capacity["context_tokens"]) == (3, "config", 1024)
        names = [(model["name"], model["state"]) for model in client.result("models/list")["models"]]
        assert names == [("mine", "ready"), ("guide", "unloaded")]
        assert client.result("infer", greedy(KNOWN[0], model="guide"))["text"] == KNOWN[0].answer


@pytest.mark.slow
def test_logs_are_one_json_object_a_line_when_asked(folder: Path) -> None:
    with running(folder, "--log-format", "json") as daemon, daemon.connect() as client:
        client.result("infer", greedy(KNOWN[0]))
    events = [json.loads(line) for line in daemon.log.read_text().splitlines()]
    declared = next(event for event in events if event["event"] == "capacity.declared")
    assert declared["policy"] == "measured"
    assert {"daemon.started", "daemon.stopped"} <= {event["event"] for event in events}


def test_the_socket_is_private_from_its_first_moment(folder: Path) -> None:
    with running(folder) as daemon:
        daemon.connect().close()
        assert daemon.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--socket", "/"], 64),
        (["--socket", "."], 64),
        (["--capacity", "9" * 5000], 64),
        (["--gpu-layers", "9" * 30], 64),
        (["--threads", "2147483647"], 64),
        (["--model", "a" * 300], 69),
    ],
)
def test_figures_and_paths_that_nothing_can_hold_are_one_line_too(
    folder: Path, arguments: list[str], code: int
) -> None:
    given = arguments if arguments[0] == "--socket" else ["--socket", str(folder / "card.sock"), *arguments]
    ended = start(*given)
    assert_refused(ended, code)
    assert len(ended.stderr) < 1000


@pytest.mark.slow
def test_a_limit_of_five_thousand_digits_is_ignored(folder: Path) -> None:
    with running(folder, CAR_INFERENCE_MAX_CONCURRENT="9" * 5000) as daemon, daemon.ready().connect() as client:
        assert client.result("inference/capacity")["policy"] == "measured"
        assert client.result("tokenize", {"text": "a", "_meta": {"anything": [1]}})["tokens"]


def test_users_that_are_allowed_reach_the_socket(folder: Path) -> None:
    (folder / "card.toml").write_text("[daemon]\nallow_uids = [65534]\n")
    with running(folder, "--config", str(folder / "card.toml")) as daemon:
        daemon.connect().close()
        assert daemon.path.stat().st_mode & 0o777 == 0o666
