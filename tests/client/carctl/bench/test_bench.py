"""`carctl bench`: its rounds, its table, and what it says of what cannot be measured."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client.carctl.bench.figures import Figures, Spread
from car_client.carctl.bench.house_figures import HouseFigures
from car_client.carctl.bench.rounds import LoadRound, Ratios, doubling, median_turn, ratios, workloads
from car_client.carctl.bench.table import footer, heading, lines
from car_client.carctl.bench.workload import Lengths
from tests.client.carctl.bench.fake_sse_server import fake_sse_server
from tests.client.carctl.command import carctl, carctl_on_terminal
from tests.client.fake_daemon import FakeDaemon


def figures(tokens_per_s: float, first_ms: float = 10.0, own_cpu: float = 0.02) -> Figures:
    return Figures(
        8, tokens_per_s, Spread(first_ms, 1500, 2500, 3000), Spread(8, 9.5, 99, 120), prompt_tokens=64, own_cpu=own_cpu
    )


def options(**given: Any) -> Namespace:
    usual: dict[str, Any] = {
        "at_once": [],
        "rate": [],
        "requests": None,
        "prompt_tokens": None,
        "max_tokens": None,
        "priority": None,
        "seed": 1,
        "model": None,
    }
    return Namespace(**{**usual, **given})


@pytest.mark.parametrize(
    ("capacity", "rounds"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (9, [1, 2, 4, 8, 9])]
)
def test_rounds_double_up_to_the_capacity(capacity: int, rounds: list[int]) -> None:
    assert doubling(capacity) == rounds
    assert [each.clients for each in workloads(options(), capacity, 1.5)] == rounds


def test_a_round_for_each_rate() -> None:
    plan = workloads(options(rate=[0.5, 2.0], requests=7), 4, 1.5)
    assert [(each.rate, each.requests) for each in plan] == [(0.5, 7), (2.0, 7)]


def test_requests_have_what_was_chosen_and_no_cache_answers_them() -> None:
    (workload,) = workloads(
        options(at_once=[3], priority="throughput", model="guide", max_tokens=Lengths(15, 105)), 4, 1.5
    )
    assert workload.answers == Lengths(15, 105)
    assert workload.requests == 12
    assert workload.options == {
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "client": "carctl bench",
        "priority": "throughput",
        "model": "guide",
    }


def test_a_round_is_a_line_below_the_heading() -> None:
    (shown,) = lines(LoadRound(16, None, figures(1234.5)))
    assert shown.split("  ")[0] == "16"
    assert " ".join(shown.split()) == "16 1,234 10 ms 1.5 s 2.5 s 8.0 ms 9.5 ms 99 ms"
    assert len(shown) == len(heading()) <= 80


def test_a_compared_round_has_a_line_of_ratios() -> None:
    ours, theirs = figures(200, first_ms=20), figures(100, first_ms=10)
    each = LoadRound(None, 2.5, ours, theirs, ratios([ours], [theirs]))
    card, other, ratio = lines(each)
    assert card.split()[:3] == ["2.5/s", "card", "200"]
    assert other.split()[:2] == ["other", "100"]
    assert ratio.split()[:5] == ["ratio", "2.00", "x", "2.00", "x"]
    assert max(map(len, (card, other, ratio))) <= 80


def test_asking_has_a_cost_that_is_shown() -> None:
    rounds = [LoadRound(1, None, figures(1, own_cpu=0.01)), LoadRound(2, None, figures(1), figures(1, own_cpu=0.125))]
    assert footer(rounds) == "the load generator took 12% of one core at most"


def test_of_several_turns_the_one_in_the_middle_is_shown() -> None:
    assert median_turn([figures(30), figures(10), figures(20)]).tokens_per_s == 20


def test_ratios_are_medians_turn_by_turn() -> None:
    found = ratios([figures(20), figures(2), figures(30)], [figures(5), figures(1), figures(10)])
    assert found.tokens_per_s == 3
    assert found == Ratios(3, Spread(1, 1, 1, 1), Spread(1, 1, 1, 1))


def test_a_time_of_nothing_has_no_ratio() -> None:
    nothing = Figures(1, 1.0, Spread(1, 1, 1, 1), Spread(0, 0, 0, 0), None, 0.0)
    assert ratios([nothing], [nothing]).itl_ms.p50 == 0


def test_no_tokens_have_no_ratio() -> None:
    assert ratios([figures(20)], [figures(0)]).tokens_per_s == 0


def test_rounds_go_up_to_the_declared_capacity(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "bench", "--json", "--max-tokens", "5", "--model", "guide", "--requests=9")
    assert (done.returncode, done.stderr) == (0, b"")
    found = [msgspec.json.decode(each, type=LoadRound) for each in done.stdout.splitlines()]
    assert [each.at_once for each in found] == [1, 2, 4]
    assert [each.card.requests for each in found] == [9, 9, 9]
    asked = [msgspec.json.decode(call.params) for call in daemon.calls if call.method == "infer_stream"]
    assert {(each["max_tokens"], each["ignore_eos"], each["model"]) for each in asked} == {(5, True, "guide")}


def test_rounds_can_be_named_and_come_as_a_table(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "bench", "--at-once", "3,2", "--requests", "4", "--max-tokens", "2-9")
    shown = done.stdout.decode().splitlines()
    assert shown[0] == heading()
    assert [line.split()[0] for line in shown[1:]] == ["3", "2", "the"]
    asked = [msgspec.json.decode(call.params)["max_tokens"] for call in daemon.calls if call.method == "infer_stream"]
    assert len(asked) == 8
    assert set(asked) <= set(range(2, 10))


def test_requests_may_arrive_at_a_rate_and_in_a_class(daemon: FakeDaemon) -> None:
    done = carctl(
        "--socket", daemon.path, "bench", "--rate", "400", "--requests", "5", "--priority", "throughput", "--json"
    )
    found = msgspec.json.decode(done.stdout, type=LoadRound)
    assert (found.at_once, found.rate, found.card.requests) == (None, 400.0, 5)
    assert daemon.params("infer_stream")["priority"] == "throughput"


def test_another_server_is_asked_the_same_in_turn(daemon: FakeDaemon) -> None:
    with fake_sse_server() as server:
        arguments = ["--compare", server.url, "--compare-model", "theirs", "--at-once", "2", "--requests", "3"]
        done = carctl("--socket", daemon.path, "bench", *arguments)
        assert (done.returncode, done.stderr) == (0, b"")
        assert [line.split()[0] for line in done.stdout.decode().splitlines()[1:]] == ["2", "other", "ratio", "the"]
        asked = [msgspec.json.decode(call.params) for call in daemon.calls if call.method == "infer_stream"]
        assert {each["prompt"] for each in asked} == {content["prompt"] for _, content in server.asked}
        assert len(asked) == len(server.asked) == 9
        assert {content["model"] for _, content in server.asked} == {"theirs"}


def test_the_json_of_a_comparison_has_both_and_their_ratios(daemon: FakeDaemon) -> None:
    with fake_sse_server() as server:
        arguments = ["--compare", server.url, "--at-once", "1", "--requests", "2", "--json"]
        found = msgspec.json.decode(carctl("--socket", daemon.path, "bench", *arguments).stdout, type=LoadRound)
    assert found.other is not None
    assert found.other.prompt_tokens == 7
    assert found.ratios is not None
    assert found.ratios.tokens_per_s > 0


def test_a_server_that_answers_otherwise_is_an_error_that_says_how(daemon: FakeDaemon) -> None:
    with fake_sse_server() as server:
        server.content_type = "application/json"
        done = carctl("--socket", daemon.path, "bench", "--compare", server.url, "--at-once", "1")
    assert done.returncode == 1
    assert done.stderr == b"carctl: the server answered with application/json instead of a stream of events\n"


def test_a_server_that_is_not_there_is_an_error_with_its_address(daemon: FakeDaemon) -> None:
    with fake_sse_server() as server:
        url = server.url
    done = carctl("--socket", daemon.path, "bench", "--compare", url, "--at-once", "1")
    assert done.returncode == 1
    assert done.stderr.decode() == f"carctl: cannot connect to {url}: connection refused; is it running?\n"


def test_without_a_daemon_there_is_nothing_to_measure(tmp_path: Path) -> None:
    assert carctl("--socket", tmp_path / "none", "bench").returncode == 69


@pytest.mark.parametrize(
    "wrong",
    [
        *("--at-once=0", "--at-once=x", "--at-once=1,,2", "--at-once=-1", "--rate=0", "--rate=inf", "--rate=nan"),
        *("--requests=0", "--max-tokens=9-3", "--prompt-tokens=0", "--compare=https://host", "--priority=first"),
    ],
)
def test_what_cannot_be_measured_is_wrong_usage(wrong: str) -> None:
    assert carctl("bench", wrong).returncode == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("--at-once=1,x", "'x' is not a whole number"),
        ("--requests=2.5", "'2.5' is not a whole number"),
        ("--rate=1,x", "'x' is not a number"),
        ("--rate=0", "'0': give a number above 0, 1,000,000 at most"),
        ("--rate=nan", "'nan': give a number above 0, 1,000,000 at most"),
        ("--minutes=1e307", "'1e307': give a number above 0, 1,000,000 at most"),
        ("--max-tokens=x", "'x': give a length of 1 or more, or two with a dash, the smaller one first"),
        ("--compare=http://a..b", "'http://a..b': the name of the host is not valid"),
    ],
)
def test_wrong_usage_names_what_is_wanted(wrong: str, said: str) -> None:
    done = carctl("bench", wrong)
    option = wrong.partition("=")[0]
    usage = "`carctl bench --help` shows the usage"
    assert done.stderr.decode() == f"carctl bench: error: argument {option}: {said}; {usage}\n"


def test_at_once_and_a_rate_are_two_different_loads() -> None:
    assert carctl("bench", "--at-once=1", "--rate=1").returncode == 2


def test_a_terminal_shows_a_bar_meanwhile(daemon: FakeDaemon) -> None:
    arguments = ("--socket", daemon.path, "bench", "--at-once", "1", "--requests", "3")
    with carctl_on_terminal(*arguments, env={"TERM": "xterm"}) as terminal:
        assert b"1 at once" in terminal.end()


@pytest.mark.parametrize(("term", "without"), [("dumb", ()), ("xterm", ("rich",))])
def test_without_rich_or_on_a_dumb_terminal_there_is_no_bar(
    daemon: FakeDaemon, term: str, without: tuple[str, ...]
) -> None:
    arguments = ("--socket", daemon.path, "bench", "--at-once", "1", "--requests", "3")
    with carctl_on_terminal(*arguments, env={"TERM": term}, without=without) as terminal:
        shown = terminal.end()
    assert b"1 at once" not in shown
    assert b"the load generator took" in shown


def test_a_picture_is_drawn_over_the_rounds(daemon: FakeDaemon, tmp_path: Path) -> None:
    picture = tmp_path / "bench.png"
    with fake_sse_server() as server:
        done = carctl(
            *("--socket", daemon.path, "bench", "--at-once", "1,2", "--requests", "2"),
            *("--compare", server.url, "--png", picture),
        )
    assert (done.returncode, done.stderr) == (0, b"")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_an_error_after_the_figures(daemon: FakeDaemon, tmp_path: Path) -> None:
    (picture := tmp_path / "x.png").symlink_to(tmp_path / "no" / "x.png")
    done = carctl(
        *("--socket", daemon.path, "bench", "--at-once", "1", "--requests", "1", "--png", picture),
    )
    assert done.returncode == 2
    assert b"the load generator took" in done.stdout
    assert b"no such file or directory" in done.stderr


def test_a_picture_needs_pillow_and_says_so_before_anything_is_measured(daemon: FakeDaemon) -> None:
    with carctl_on_terminal("--socket", daemon.path, "bench", "--png", "x.png", without=("PIL",)) as terminal:
        assert b"pip install 'card-daemon[images]'" in terminal.end()
    assert not daemon.calls


def test_json_goes_into_a_file_beside_the_table(daemon: FakeDaemon, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = carctl("--socket", daemon.path, "bench", "--at-once", "1,2", "--requests", "2", "--json", file)
    assert (done.returncode, done.stdout.decode().splitlines()[0]) == (0, heading())
    assert [msgspec.json.decode(line, type=LoadRound).at_once for line in file.read_bytes().splitlines()] == [1, 2]


def test_one_file_for_the_json_and_the_picture_is_refused_before_anything_is_sent(
    daemon: FakeDaemon, tmp_path: Path
) -> None:
    file = tmp_path / "found"
    done = carctl("--socket", daemon.path, "bench", "--json", file, "--png", file)
    assert (done.returncode, b"give each a file of its own" in done.stderr, daemon.calls) == (2, True, [])
    assert not file.exists()


HOUSE = ("bench", "--house", "--minutes", "0.01", "--apps")


def test_a_house_is_measured_by_the_socket_each_app_with_its_label(daemon: FakeDaemon, tmp_path: Path) -> None:
    picture, file = tmp_path / "house.png", tmp_path / "house.json"
    done = carctl("--socket", daemon.path, *HOUSE, "editor,embedder", "--png", picture, "--json", file)
    # Each phase is a line where no bar can be drawn.
    phases = [f"card: {phase}" for phase in ("editor alone", "embedder alone", "together")]
    assert (done.returncode, done.stderr.decode().splitlines()) == (0, phases)
    assert [line.split()[0] for line in done.stdout.decode().splitlines()] == [
        "card",
        "editor",
        "embedder",
        "together:",
    ]
    found = msgspec.json.decode(file.read_bytes(), type=HouseFigures)
    assert [(each.app, each.together.failed) for each in found.apps] == [("editor", 0), ("embedder", 0)]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert {daemon.params("infer_stream")[name] for name in ("client", "max_tokens")} == {"editor", 24}
    assert len(daemon.params("embed")["input"]) == 8


def test_a_house_is_measured_by_a_url_without_any_daemon(tmp_path: Path) -> None:
    with fake_sse_server() as server:
        arguments = (*HOUSE, "editor", "--url", server.url, "--compare", server.url, "--compare-model", "theirs")
        done = carctl("--socket", tmp_path / "none", *arguments)
        assert done.returncode == 0, done.stderr
        name = server.url.removeprefix("http://")
        assert [line.split()[0] for line in done.stdout.decode().splitlines()] == [name, "editor", "together:"] * 2
        assert {body.get("model") for _, body in server.asked} == {None, "theirs"}
        assert set(server.agents) == {"editor"}


def test_a_second_house_on_a_server_sends_texts_that_the_first_left_in_no_cache() -> None:
    with fake_sse_server() as server:
        runs = []
        for _ in range(2):
            assert carctl(*HOUSE, "editor", "--url", server.url).returncode == 0
            runs.append({str(body.get("messages") or body["prompt"]) for _, body in server.asked})
            server.asked.clear()
    assert runs[0]
    assert runs[1]
    assert not runs[0] & runs[1]


def test_a_picture_of_no_known_form_is_refused_before_the_measurement(tmp_path: Path) -> None:
    with fake_sse_server() as server:
        done = carctl(*HOUSE, "editor", "--url", server.url, "--png", tmp_path / "x.svg")
    assert (done.returncode, b".svg is no form of picture" in done.stderr, server.asked) == (2, True, [])


def test_a_house_without_its_server_is_an_error_with_the_address(tmp_path: Path) -> None:
    with fake_sse_server() as server:
        url = server.url
    done = carctl(*HOUSE, "editor", "--url", url)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == f"carctl: cannot connect to {url}: connection refused; is it running?\n"
    assert carctl("--socket", tmp_path / "none", *HOUSE, "editor").returncode == 69


@pytest.mark.parametrize("wrong", ["--apps=person", "--url=http://127.0.0.1:1", "--minutes=1"])
def test_options_of_a_house_need_a_house(wrong: str) -> None:
    done = carctl("bench", wrong)
    assert (done.returncode, done.stderr) == (2, b"carctl: --url, --apps and --minutes go with --house\n")


@pytest.mark.parametrize("wrong", ["--requests=2", "--prompt-tokens=8", "--max-tokens=8", "--priority=throughput"])
def test_options_of_a_load_do_not_go_with_a_house(wrong: str) -> None:
    done = carctl("bench", "--house", wrong)
    message = "--requests, --prompt-tokens, --max-tokens and --priority do not go with --house"
    assert (done.returncode, done.stderr.decode()) == (2, f"carctl: {message}\n")


@pytest.mark.parametrize("option", ["--json", "--png"])
def test_a_file_that_cannot_be_written_is_refused_before_the_measurement(
    daemon: FakeDaemon, tmp_path: Path, option: str
) -> None:
    done = carctl("--socket", daemon.path, "bench", option, tmp_path / "none" / "found")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"carctl: cannot write {tmp_path}/none/found: there is no folder")
    done = carctl("--socket", daemon.path, "bench", option, tmp_path)
    assert (done.returncode, b"it is a folder" in done.stderr) == (2, True)
    assert not daemon.calls
