"""A house in virtual time, on a server with scripted times: its phases, outcomes and figures."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

import pytest
from msgspec import structs

from car_client.carctl.bench.completions import LoadError
from car_client.carctl.bench.figures import TimedAnswer
from car_client.carctl.bench.house_apps import APPS, App, Call, Lane
from car_client.carctl.bench.house_figures import Kept, computed_by_new, house_figures
from car_client.carctl.bench.house_run import House, HouseServer, Sent, Stay
from car_client.carctl.bench.house_table import bars, table
from tests.client.carctl.bench.scripted_server import ScriptedServer
from tests.client.carctl.bench.virtual_time import now, run


def asks(tokens: int, pause_s: float) -> Callable[[Random, str], Lane]:
    """Return a lane of equal requests."""

    def lane(_: Random, session: str) -> Lane:
        while True:
            yield Call(pause_s, {"prompt": session, "max_tokens": tokens})

    return lane


CHAT = App("chat", "first token", [asks(5, 1.0)])
CODE = App("code", "answer", [asks(3, 0.0)], every_s=1.5)


def lived(
    apps: Sequence[App], seconds: float, script: Callable[[ScriptedServer], None] = lambda _: None, at_once: int = 100
) -> tuple[ScriptedServer, House, Stay]:
    """Run apps on a scripted server."""

    async def live() -> tuple[ScriptedServer, House, Stay]:
        server = ScriptedServer(at_once)
        script(server)
        house = House([HouseServer("scripted", server.connect)], seconds, clock=now)
        (stay,) = await house.run(apps)
        return server, house, stay

    return run(live())


def test_each_app_is_alone_for_its_part_of_the_first_half_and_together_for_the_second() -> None:
    server, _, stay = lived([CHAT, CODE], 120)
    assert {name: (phase.seconds, len(phase.sent) > 10) for name, phase in stay.alone.items()} == {
        "chat": (30, True),
        "code": (30, True),
    }
    assert stay.together.seconds == 60
    for phase in (*stay.alone.values(), stay.together):
        assert all(phase.begin <= each.sent_at < phase.begin + phase.seconds for each in phase.sent)
    # Each text begins with the name of the run.
    sessions = [(label, params["prompt"].partition("-")) for label, _, params in server.asked]
    assert len({run for _, (run, _, _) in sessions}) == 1
    assert [label for label, (_, _, session) in sessions if session == "1-0-first"] == ["chat", "code"]
    assert {session for _, (_, _, session) in sessions} == {
        "1-0-first",
        "1-0-chat-alone",
        "1-0-code-alone",
        "1-0-together",
    }
    assert server.open == 0


def test_a_house_of_one_app_has_prompts_of_its_own_in_each_phase() -> None:
    server, _, _ = lived([CHAT], 60)
    sessions = {params["prompt"].partition("-")[2] for _, _, params in server.asked}
    assert sessions == {"1-0-first", "1-0-chat-alone", "1-0-together"}


def test_an_app_keeps_what_it_has_alone_by_what_it_has_together() -> None:
    _, _, stay = lived([CHAT, App("other", "answer", [asks(5, 0.0)])], 400, at_once=1)
    (chat, other) = house_figures(stay, [CHAT, APPS["person"], App("other", "answer", [])]).apps
    # Alone the prompt takes 0.5 s; together the answer of the other app, 1.5 s, is before it: the chat's pause ends
    # within that answer.
    assert chat.alone.waits.p50 == pytest.approx(500)
    assert chat.together.waits.p50 == pytest.approx(1000)
    assert chat.p50 == pytest.approx(0.5)
    assert other.alone.waits.p95 == pytest.approx(1500)
    assert chat.together.silences.p95 == pytest.approx(250)


def test_tokens_per_second_are_those_of_all_apps_together() -> None:
    _, _, stay = lived([App("endless", "answer", [asks(5, 0.0)] * 2)], 600)
    assert house_figures(stay, [App("endless", "answer", [])]).tokens_per_s == pytest.approx(2 * 5 / 1.5, rel=0.05)


def test_a_newer_request_supersedes_the_older_which_counts_as_never_answered() -> None:
    def slow(server: ScriptedServer) -> None:
        server.token_s = 0.6

    _, _, stay = lived([CODE], 60, slow)
    (code,) = house_figures(stay, [CODE]).apps
    assert code.together.outcomes == {"answered": 0, "superseded": 20, "refused": 0, "lost": 0}
    assert (code.together.waits.p50, code.p50) == (None, 0.0)
    moments = [each.sent_at for each in stay.together.sent]
    assert all(later - earlier == pytest.approx(1.5) for earlier, later in pairwise(moments))


def test_an_answer_in_time_is_followed_at_the_same_pace() -> None:
    _, _, stay = lived([CODE], 60)
    assert {each.outcome for each in stay.together.sent} == {"answered"}
    assert len(stay.together.sent) == 20


def test_an_app_that_the_server_refuses_is_left_out_with_the_reason() -> None:
    def refuse(server: ScriptedServer) -> None:
        server.refuses["code"] = "no code here"

    _, house, stay = lived([CHAT, CODE], 60, refuse)
    assert house.left_out == {"code": "no code here"}
    assert (list(stay.alone), {each.app for each in stay.together.sent}) == (["chat"], {"chat"})
    assert stay.alone["chat"].seconds == 30


def test_a_server_that_is_gone_in_the_middle_leaves_the_figures_so_far() -> None:
    def leave(server: ScriptedServer) -> None:
        server.gone_at = now() + 40

    _, house, stay = lived([CHAT, CODE], 120, leave)
    assert len([each for each in stay.alone["chat"].sent if each.outcome == "answered"]) > 10
    assert [each.outcome for each in stay.together.sent] == ["refused", "refused"]
    assert house.gone == {"scripted, together": "nobody is there"}


def test_a_server_that_answers_nothing_more_is_named_with_its_last_error() -> None:
    def refuse(server: ScriptedServer) -> None:
        server.later |= {"chat": "refused", "code": "refused"}

    _, house, _ = lived([CHAT, CODE], 60, refuse)
    assert house.gone == {f"scripted, {phase}": "no" for phase in ("chat alone", "code alone", "together")}


def test_the_shortest_phase_has_a_request_of_each_lane() -> None:
    _, _, stay = lived([App("rare", "answer", [asks(1, 100.0)] * 3)], 2)
    assert (len(stay.alone["rare"].sent), len(stay.together.sent)) == (3, 3)


def test_a_server_that_answers_no_app_is_an_error() -> None:
    def refuse(server: ScriptedServer) -> None:
        server.refuses |= {"chat": "not today"}

    with pytest.raises(LoadError, match="not today"):
        lived([CHAT], 60, refuse)


def test_a_request_without_an_answer_is_lost_in_the_end_and_the_run_ends() -> None:
    _, _, stay = lived([CHAT, CODE], 60, lambda server: server.later.update(chat="silent"))
    (lost,) = stay.alone["chat"].sent
    assert (lost.outcome, lost.answer) == ("lost", None)
    assert lost.sent_at + lost.seconds == pytest.approx(stay.alone["chat"].begin + 15 + 30)
    assert house_figures(stay, [CHAT, CODE]).apps[0].alone.failed == 1


def test_a_server_that_falls_silent_is_named() -> None:
    _, house, _ = lived([CHAT], 60, lambda server: server.later.update(chat="silent"))
    assert house.gone["scripted, together"] == "no answer came in time"


@pytest.mark.parametrize(("fate", "outcome"), [("refused", "refused"), ("broken", "lost")])
def test_an_error_before_the_first_token_is_a_refusal_and_after_it_a_loss(fate: str, outcome: str) -> None:
    _, _, stay = lived([CHAT], 60, lambda server: server.later.update(chat=fate))
    assert {each.outcome for each in stay.together.sent} == {outcome}
    # At most a request a second, whatever the server does.
    assert 15 <= len(stay.together.sent) <= 30


def test_the_first_request_of_a_lane_counts_only_where_it_is_alone() -> None:
    async def live(seconds: float) -> Kept:
        server = ScriptedServer()
        server.first_s = 2.0
        (stay,) = await House([HouseServer("scripted", server.connect)], seconds, clock=now).run([CHAT])
        return house_figures(stay, [CHAT]).apps[0]

    long, short = run(live(60)), run(live(4))
    assert long.alone.outcomes["answered"] > 5
    assert long.alone.waits.p95 == pytest.approx(500)
    assert short.alone.outcomes["answered"] == 1
    assert short.alone.waits.p95 == pytest.approx(2500)


def test_two_servers_take_turns_with_each_app_and_then_with_all() -> None:
    async def live() -> list[tuple[str, float]]:
        servers = [ScriptedServer(), ScriptedServer()]
        house = House([HouseServer(str(number), each.connect) for number, each in enumerate(servers)], 60, clock=now)
        stays = await house.run([CHAT, CODE])
        phases = [(f"{app} {stay.server}", each.begin) for stay in stays for app, each in stay.alone.items()]
        return sorted([*phases, *((stay.server, stay.together.begin) for stay in stays)], key=lambda pair: pair[1])

    assert [name for name, _ in run(live())] == ["chat 0", "chat 1", "code 0", "code 1", "0", "1"]


def test_prompts_that_no_cache_could_have_are_new() -> None:
    answer = TimedAnswer(0.0, [1.0], 4, prompt_tokens=10, cached_tokens=5, text="xxxx")
    first = Sent("chat", "a" * 100, 0.0, 1.0, "answered", answer)
    # Half of the second prompt is the first one with its answer: 10 new tokens and 5, of which 5 and 5 were computed.
    beginning = first.text + "assistant: xxxx\n"
    second = Sent("chat", beginning + "b" * len(beginning), 1.0, 1.0, "answered", answer)
    assert computed_by_new([second, first]) == pytest.approx(10 / 15)
    assert (
        computed_by_new([Sent("chat", "a", 0.0, 1.0, "answered", structs.replace(answer, cached_tokens=None))]) is None
    )


def test_a_table_and_bars_have_a_row_for_each_app() -> None:
    _, _, stay = lived([CHAT, CODE], 60)
    found = house_figures(stay, [CHAT, CODE])
    shown = list(table(found, {"cat": "no cat"}))
    assert " ".join(shown[1].split()) == "chat first token 500 ms 500 ms 500 ms 500 ms 100% 100% 250 ms 0"
    assert shown[3:] == ["cat is left out: no cat", shown[4]]
    assert shown[4].startswith("together: ")
    assert max(map(len, shown)) <= 100
    assert [(label, bar.text) for label, (bar,) in bars([found])] == [
        ("chat (first token)", "100%: 500 ms, together 500 ms"),
        ("code (answer)", "100%: 1.0 s, together 1.0 s"),
    ]
