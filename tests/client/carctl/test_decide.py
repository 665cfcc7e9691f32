"""`carctl decide`: questions from flags, answers as lines, bars and JSON, and an exit code for scripts."""

import os
import re
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len

from tests.client.carctl.command import carctl, carctl_on_terminal
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import DECISION

QUESTIONS = (
    *("--choice", "team=billing,shipping"),
    *("--score", "urgency=can wait, today,now"),
    *("--predicate", "the customer is angry"),
)


def code(daemon: FakeDaemon, *arguments: str) -> int:
    return carctl("--socket", daemon.path, "decide", "x", *QUESTIONS, *arguments).returncode


def test_each_flag_is_a_question_in_its_order(daemon: FakeDaemon) -> None:
    assert code(daemon, "--model", "guide", "--orders", "2") == 0
    sent = daemon.params("decide")
    assert (sent["state"], sent["model"], sent["orders"]) == ("x", "guide", 2)
    assert [each["type"] for each in sent["questions"]] == ["choice", "score", "predicate"]
    assert [each["name"] for each in sent["questions"]] == ["team", "urgency", "the customer is angry"]
    assert [level["label"] for level in sent["questions"][1]["levels"]] == ["can wait", "today", "now"]


def test_on_a_pipe_each_option_is_a_line(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "decide", "x", *QUESTIONS)
    assert done.stdout.decode().splitlines() == [
        "team: billing  (confidence 0.50, mass 0.90)",
        "  billing                  0.750",
        "  shipping                 0.250",
        "urgency: 1.20 of 2  (confidence 0.25, mass 0.80)",
        "  can wait                 0.200",
        "  today                    0.400",
        "  now                      0.400",
        "the customer is angry: 0.90  (mass 0.70)",
        "  yes                      0.900",
        "  no                       0.100",
    ]


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_on_a_terminal_each_option_is_one_line_however_narrow_it_is(daemon: FakeDaemon, columns: int) -> None:
    choice = ("--choice", "team=請求書と支払いについての質問,shipping")
    env = {"COLUMNS": str(columns), "TERM": "xterm"}
    with carctl_on_terminal("--socket", daemon.path, "decide", "x", *choice, *QUESTIONS[2:], env=env) as terminal:
        lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.end().decode()).splitlines()
    bars = [line for line in lines if re.search(r" [01]\.\d{3}$", line)]
    assert len(bars) == 7
    assert len({cell_len(line) for line in bars}) == 1
    assert all(cell_len(line) <= columns for line in bars)


def test_json_is_the_result_itself(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "decide", "x", *QUESTIONS, "--json")
    assert msgspec.json.decode(done.stdout) == DECISION


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("angry>0.7", True),
        ("angry > 0.95", False),
        ("the customer is angry<=0.9", True),
        ("team=billing", True),
        ("team=shipping", False),
        ("team=shipping>0.2", True),
        ("team=billing<0.5", False),
        ("urgency>=1.2", True),
        ("urgency=now>0.5", False),
        ("angry=no<0.5", True),
    ],
)
def test_the_exit_code_says_whether_the_condition_holds(daemon: FakeDaemon, condition: str, holds: bool) -> None:
    assert code(daemon, "--if", condition) == (0 if holds else 3)


def test_a_statement_longer_than_a_name_is_named_by_its_place_as_in_its_answer(daemon: FakeDaemon) -> None:
    daemon.answers["decide"] = {**DECISION, "answers": [{**DECISION["answers"][2], "name": "0"}]}
    asked = ("--socket", daemon.path, "decide", "x", "--predicate", "it is so " * 30)
    assert carctl(*asked, "--if", "0>0.5").returncode == 0
    assert b"the questions: 0" in carctl(*asked, "--if", "so>0.5").stderr


def test_of_several_conditions_all_have_to_hold(daemon: FakeDaemon) -> None:
    for conditions in (("angry>0.7", "team=billing"), ("team=shipping", "angry>0.7"), ("angry>0.7", "team=shipping")):
        flags = [flag for condition in conditions for flag in ("--if", condition)]
        assert code(daemon, *flags) == (3 if "team=shipping" in conditions else 0)


@pytest.mark.parametrize(
    ("given", "name", "statement"),
    [
        ("angry=the customer is angry", "angry", "the customer is angry"),
        ("the price >= 100", "the price >= 100", "the price >= 100"),
        ("is x=y true", "is x=y true", "is x=y true"),
        ("x == y", "x == y", "x == y"),
        ("sum = a=b", "sum", "a=b"),
        pytest.param("it is so " * 30, None, "it is so", id="longer than a name may be"),
    ],
)
def test_a_name_before_a_statement_is_one_word(
    daemon: FakeDaemon, given: str, name: str | None, statement: str
) -> None:
    daemon.answers["decide"] = {**DECISION, "answers": DECISION["answers"][2:]}
    assert carctl("--socket", daemon.path, "decide", "x", "--predicate", given).returncode == 0
    (sent,) = daemon.params("decide")["questions"]
    assert (sent.get("name"), statement in sent["instructions"]) == (name, True)


@pytest.mark.parametrize(
    ("condition", "code"), [("team=<5", 3), ("team=>5", 0), ("team=<5<0.5", 0), ("team=>5>=0.9", 3)]
)
def test_an_option_may_contain_signs_of_a_comparison(daemon: FakeDaemon, condition: str, code: int) -> None:
    figures = {"choice": ">5", "confidence": 0.5, "mass": 1.0, "probabilities": [0.3, 0.7]}
    answer = {"type": "choice", "name": "team", **figures}
    daemon.answers["decide"] = {**DECISION, "answers": [answer]}
    done = carctl("--socket", daemon.path, "decide", "x", "--choice", "team=<5,>5", "--if", condition)
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("the price >= 100>0.7", 0),
        ("the price >= 100 < .5", 3),
        ("the price >= 100=no<0.5", 0),
        ("the price >= 100", 2),
    ],
)
def test_a_statement_that_names_its_question_may_have_signs(daemon: FakeDaemon, condition: str, code: int) -> None:
    daemon.answers["decide"] = {**DECISION, "answers": [{**DECISION["answers"][2], "name": "the price >= 100"}]}
    done = carctl("--socket", daemon.path, "decide", "x", "--predicate", "the price >= 100", "--if", condition)
    assert done.returncode == code
    assert (b"such as the price >= 100>0.7" in done.stderr) == (code == 2)


@pytest.mark.parametrize(
    ("options", "condition", "code"),
    [
        ("1,1>0", "which=1>0", 0),
        ("1,1>0", "which=1", 3),
        ("1,1>0", "which=1>0>0.5", 0),
        ("1,1>0", "which=1>0.5", 3),
        ("py,py>3.11.2", "which=py>3.11.2", 0),
        ("py,py>3.11.2", "which=py>3.11.2>.5", 0),
        ("py,py>3.11.2", "which=py>.5", 3),
    ],
)
def test_an_option_may_look_like_a_comparison(daemon: FakeDaemon, options: str, condition: str, code: int) -> None:
    figures = {"choice": options.split(",")[1], "confidence": 0.5, "mass": 1.0, "probabilities": [0.3, 0.7]}
    daemon.answers["decide"] = {**DECISION, "answers": [{"type": "choice", "name": "which", **figures}]}
    done = carctl("--socket", daemon.path, "decide", "x", "--choice", f"which={options}", "--if", condition)
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize(
    ("condition", "code"), [("rating>=3", 0), ("rating>=4", 3), ("rating<=3", 3), ("rating<=4", 0), ("rating=4>=.5", 0)]
)
def test_a_score_whose_levels_are_numbers_is_compared(daemon: FakeDaemon, condition: str, code: int) -> None:
    figures = {"score": 3.5, "confidence": 0.5, "mass": 1.0, "probabilities": [0.0, 0.0, 0.0, 0.5, 0.5]}
    daemon.answers["decide"] = {**DECISION, "answers": [{"type": "score", "name": "rating", **figures}]}
    done = carctl("--socket", daemon.path, "decide", "x", "--score", "rating=0,1,2,3,4", "--if", condition)
    assert (done.returncode, done.stderr) == (code, b"")


def test_a_choice_whose_options_are_numbers_has_no_order(daemon: FakeDaemon) -> None:
    for condition in ("n>=2", "n<=2", "n>2"):
        done = carctl("--socket", daemon.path, "decide", "x", "--choice", "n=1,2,3", "--if", condition)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"name one of its options" in done.stderr or b"between 0 and 1" in done.stderr


def test_an_option_may_contain_an_equals_sign(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "decide", "x", "--choice", "team=a=b,c", "--if", "team=a=c>0.5")
    assert (done.returncode, b"no option 'a=c': it has a=b, c" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x",), "no question"),
        ((*QUESTIONS,), "the state is empty: give it as an argument or with --file, or pipe it in"),
        (("x", "-f", "x", *QUESTIONS), "either as an argument or with --file"),
        (("x", "--choice", "team"), "team=billing,shipping,tech"),
        (("x", "--score", "a=b"), "urgency=can wait,today,now"),
        (("x", *QUESTIONS, "--if", "calm>0.5"), "no question is named 'calm'"),
        (("x", *QUESTIONS, "--if", "angry"), "angry>0.7"),
        (("x", *QUESTIONS, "--if", "team>0.5"), "team=billing>0.7"),
        (("x", *QUESTIONS, "--if", "team"), "name one of its options, such as team=billing\n"),
        (("x", *QUESTIONS, "--if", "team=biling"), "no option 'biling': it has billing, shipping"),
        (("x", *QUESTIONS, "--if", "angry=no"), "angry=no>0.7"),
        (("x", *QUESTIONS, "--if", "angry>70"), "between 0 and 1"),
        (("x", *QUESTIONS, "--if", ">"), "no condition"),
        (("x", *QUESTIONS, "--if", "a>1.2.3"), "no condition"),
        (("-f", "/nonexistent/state.json", *QUESTIONS), "cannot read"),
    ],
)
def test_wrong_use_says_what_to_write(daemon: FakeDaemon, arguments: tuple[str, ...], words: str) -> None:
    done = carctl("--socket", daemon.path, "decide", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr.decode()


def test_a_statement_that_is_not_utf_8_is_refused_in_words(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "decide", "x", "--predicate", os.fsdecode(b"it is \xff"))
    assert (done.returncode, done.stderr) == (2, b"carctl: the text is not UTF-8\n")


def test_a_file_is_json_if_it_can_be_read_so(daemon: FakeDaemon, tmp_path: Path) -> None:
    others = ("Dear all,", "null", "123456789012345678901234567890", "[" * 100_000)
    values = ('{"a": [1]}', '\ufeff{"a": [1]}')
    for text, state in (*((each, {"a": [1]}) for each in values), *((f"{each}\n", each) for each in others)):
        (tmp_path / "state").write_text(text)
        assert carctl("--socket", daemon.path, "decide", "-f", tmp_path / "state", *QUESTIONS).returncode == 0
        assert daemon.params("decide")["state"] == state


def test_a_dash_reads_standard_input(daemon: FakeDaemon) -> None:
    carctl("--socket", daemon.path, "decide", "-", *QUESTIONS, input=b"a text\n")
    assert daemon.params("decide")["state"] == "a text"
    carctl("--socket", daemon.path, "decide", "-f", "-", *QUESTIONS, input=b'[{"role":"user","content":"Hi"}]')
    assert daemon.params("decide")["state"] == [{"role": "user", "content": "Hi"}]


def test_what_is_piped_in_is_the_state_if_none_is_named(daemon: FakeDaemon) -> None:
    carctl("--socket", daemon.path, "decide", *QUESTIONS, input=b"Dear all,\n")
    assert daemon.params("decide")["state"] == "Dear all,"
