"""`carctl infer`: its options, the forms of its output, thinking and tool calls."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client.carctl.request import FLAGS
from car_client.options import InferOptions
from car_protocol.errors import RpcError
from tests.client.carctl.command import carctl, carctl_on_pipe, carctl_on_terminal, interrupt
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER

CALL = {"id": "call_1", "function": {"name": "look", "arguments": '{"at":1}'}, "type": "function"}
THOUGHT: list[str | dict[str, Any]] = [{"reasoning": "hm"}, {"reasoning": "m\n"}, "Hello"]


def asked(daemon: FakeDaemon, *arguments: str | Path) -> dict[str, Any]:
    """Return what the daemon was asked, beside the question."""
    done = carctl("--socket", daemon.path, "infer", "Hi", "--raw", *arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    params: dict[str, Any] = daemon.params("infer_stream")
    return {name: value for name, value in params.items() if name != "prompt"}


def refused(*arguments: str | Path) -> str:
    """Return the last line of a wrong usage."""
    done = carctl("infer", "Hi", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    return done.stderr.decode().splitlines()[-1]


def test_every_flag_is_a_member_of_the_request() -> None:
    assert {flag.member for flag in FLAGS.values()} <= set(InferOptions.__annotations__)


@pytest.mark.parametrize(
    ("given", "member"),
    [
        ("top_n_sigma=1.5", {"top_n_sigma": 1.5}),
        ("ignore_eos=true", {"ignore_eos": True}),
        ("session=123", {"session": "123"}),
        ('session="a b"', {"session": "a b"}),
        ("tool_choice=none", {"tool_choice": "none"}),
        ('logit_bias={"7": -100}', {"logit_bias": {"7": -100}}),
        ("grammar=root ::= [a-c]=", {"grammar": "root ::= [a-c]="}),
        ('lora=[{"name":"x"}]', {"lora": [{"name": "x"}]}),
    ],
)
def test_a_param_is_json_and_text_needs_no_quotes(daemon: FakeDaemon, given: str, member: dict[str, Any]) -> None:
    assert asked(daemon, "--param", given) == member


def test_reproducible_is_a_flag_without_a_value(daemon: FakeDaemon) -> None:
    assert asked(daemon, "--reproducible", "--seed", "3") == {"reproducible": True, "seed": 3}
    assert asked(daemon) == {}


def test_params_add_up_and_win_over_flags(daemon: FakeDaemon) -> None:
    params = asked(daemon, "--top-k", "3", "--param", "top_k=5", "--param", "min_p=0.5")
    assert params == {"top_k": 5, "min_p": 0.5}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("temprature=1", "there is no option 'temprature', did you mean 'temperature'?"),
        ("prompt=x", "there is no option 'prompt'"),
        ("zzzzzz=1", "there is no option 'zzzzzz'"),
        ("temperature", "'temperature' is not of the form NAME=VALUE"),
        ("_meta=5", "'_meta' has to be a JSON object"),
    ],
)
def test_an_unknown_param_is_refused_with_its_nearest_relative(given: str, said: str) -> None:
    assert refused("--param", given).startswith(f"carctl infer: error: argument --param: {said}")


def test_schema_grammar_and_tools_come_from_files(daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "schema").write_text('{"type": "object"}')
    (tmp_path / "grammar").write_text('root ::= "é"\n')
    (tmp_path / "tools").write_text("[]")
    assert asked(daemon, "--schema", tmp_path / "schema") == {"json_schema": {"type": "object"}}
    assert asked(daemon, "--schema", ' {"type": "object"}') == {"json_schema": {"type": "object"}}
    assert asked(daemon, "--grammar", tmp_path / "grammar") == {"grammar": 'root ::= "é"\n'}
    assert asked(daemon, "--tools", tmp_path / "tools") == {"tools": []}


def test_a_file_that_cannot_be_used_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("{")
    (tmp_path / "binary").write_bytes(b"\xff")
    assert "no such file or directory" in refused("--schema", tmp_path / "missing")
    assert "not JSON" in refused("--schema", tmp_path / "broken")
    assert "argument --schema: not JSON" in refused("--schema", '{"type":')
    assert "not UTF-8" in refused("--grammar", tmp_path / "binary")
    assert "is a directory" in refused("--grammar", tmp_path)


def test_the_system_message_comes_first(daemon: FakeDaemon) -> None:
    carctl("--socket", daemon.path, "infer", "Hi", "--system", "Be brief")
    assert daemon.params("infer_stream")["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hi"},
    ]


def test_a_system_message_needs_a_model_that_can_chat(daemon: FakeDaemon) -> None:
    daemon.chats = False
    done = carctl("--socket", daemon.path, "infer", "Hi", "--system", "Be brief")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"lacks chat_template" in done.stderr
    assert "not allowed with" in refused("--system", "x", "--raw")


def test_json_is_the_answer_object_as_it_came(daemon: FakeDaemon) -> None:
    daemon.answers["infer"] = ANSWER | {"text": "Hello", "something_new": 1}
    done = carctl("--socket", daemon.path, "infer", "Hi", "--json", "--param", "logprobs=2")
    assert msgspec.json.decode(done.stdout) == daemon.answers["infer"]
    assert daemon.params("infer")["logprobs"] == 2


def test_without_streaming_the_answer_comes_in_one_piece(daemon: FakeDaemon) -> None:
    daemon.answers["infer"] = ANSWER | {"text": "Hello\n", "tool_calls": [CALL]}
    done = carctl("--socket", daemon.path, "infer", "Hi", "--no-stream")
    text, call = done.stdout.decode().splitlines()
    assert (text, msgspec.json.decode(call)) == ("Hello", CALL)


@pytest.mark.parametrize("form", [[], ["--no-stream"], ["--json"]])
def test_stats_are_one_line_on_standard_error(daemon: FakeDaemon, form: list[str]) -> None:
    timings = {"queue_ms": 12.0, "prefill_ms": 50.0, "ttft_ms": 62.0, "decode_ms": 1000.0, "total_ms": 1062.0}
    usage = {"prompt_tokens": 30, "cached_tokens": 20, "completion_tokens": 42}
    daemon.ending = {"timings": timings, "usage": usage}
    daemon.answers["infer"] = ANSWER | {"text": "Hello"} | daemon.ending
    done = carctl("--socket", daemon.path, "infer", "Hi", "--stats", *form)
    assert done.stderr.decode() == (
        "30 prompt tokens (20 cached, 200 tokens/s); 42 generated, 41.0 tokens/s; queue 12 ms; "
        "first token 62 ms; total 1.1 s; stop, seed 7\n"
    )
    assert b"Hello" in done.stdout


def shown(daemon: FakeDaemon, **environment: str) -> str:
    """Return what a terminal shows."""
    env = {"TERM": "xterm", **environment}
    with carctl_on_terminal("--socket", daemon.path, "infer", "Hi", env=env) as terminal:
        return terminal.end().decode()


def test_thinking_is_dimmed_on_a_terminal(daemon: FakeDaemon) -> None:
    daemon.pieces = THOUGHT
    assert shown(daemon) == "\x1b[2mhmm\x1b[0m\n\nHello\n"


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_thinking_is_plain_where_nothing_may_be_styled(daemon: FakeDaemon, environment: dict[str, str]) -> None:
    daemon.pieces = THOUGHT
    assert shown(daemon, **environment) == "hmm\n\nHello\n"


def test_an_answer_cut_off_while_thinking_leaves_the_terminal_as_it_was(daemon: FakeDaemon) -> None:
    daemon.pieces = THOUGHT[:2]
    assert shown(daemon) == "\x1b[2mhmm\x1b[0m\n"


def test_a_pipe_gets_the_answer_without_the_thinking(daemon: FakeDaemon) -> None:
    daemon.pieces = THOUGHT
    assert carctl("--socket", daemon.path, "infer", "Hi").stdout == b"Hello\n"


def pieces(index: int, *arguments: str, **last: str) -> list[dict[str, Any]]:
    """Return chunks with a call, one for its name and one for each part of its arguments."""
    first = {"index": index, "id": f"call_{index}", "name": "look"}
    parts = [first, *({"index": index, "arguments": part} for part in arguments)]
    parts[-1] |= last
    return [{"tool_calls": [part]} for part in parts]


def test_tool_calls_are_json_lines(daemon: FakeDaemon) -> None:
    daemon.pieces = ["I look.\n\n", *pieces(0, '{"at"', ': "é\\n\n"}'), *pieces(1, "1", invalid="arguments"), "So.\n"]
    text, *calls, last = carctl("--socket", daemon.path, "infer", "Hi").stdout.decode().splitlines()
    assert (text, last) == ("I look.", "So.")
    function = {"name": "look", "arguments": '{"at": "é\\n\n"}'}
    assert [msgspec.json.decode(call) for call in calls] == [
        {"id": "call_0", "function": function, "type": "function"},
        {"id": "call_1", "function": {"name": "look", "arguments": "1"}, "type": "function", "invalid": "arguments"},
    ]


def test_the_line_of_a_call_is_the_one_that_comes_without_streaming(daemon: FakeDaemon) -> None:
    daemon.pieces = [*pieces(0, "{", "}")]
    streamed = carctl("--socket", daemon.path, "infer", "Hi").stdout
    call = {"id": "call_0", "function": {"name": "look", "arguments": "{}"}, "type": "function"}
    daemon.answers["infer"] = ANSWER | {"text": "", "tool_calls": [call]}
    assert streamed == carctl("--socket", daemon.path, "infer", "Hi", "--no-stream").stdout
    assert streamed == msgspec.json.encode(call) + b"\n"


def test_a_terminal_shows_the_pieces_of_a_call_as_they_come(daemon: FakeDaemon) -> None:
    daemon.pieces = [*pieces(0, '{"at"')]
    daemon.silent_after = len(daemon.pieces)
    with carctl_on_terminal("--socket", daemon.path, "infer", "Hi") as terminal:
        terminal.read_until(b'{\\"at\\"')


def piece_of(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text}


@pytest.mark.parametrize("given", [("-n", "2"), ("--param", "n=2")])
@pytest.mark.parametrize("form", [(), ("--no-stream",)])
def test_several_answers_stand_below_headings_with_their_seeds(
    daemon: FakeDaemon, given: tuple[str, ...], form: tuple[str, ...]
) -> None:
    answers = [{"text": "One\n", "finish_reason": "stop"}, {"text": "Two", "finish_reason": "length"}]
    daemon.answers["infer"] = {name: value for name, value in ANSWER.items() if name != "finish_reason"}
    daemon.answers["infer"] |= {"answers": answers}
    daemon.pieces = [piece_of(1, "T"), piece_of(0, "On"), piece_of(1, "wo"), piece_of(0, "e\n")]
    daemon.ending = {"finish_reason": None, "answers": [each | {"text": ""} for each in answers]}
    done = carctl("--socket", daemon.path, "infer", "Hi", "--stats", "--seed", "7", *given, *form)
    assert done.stdout.decode() == "--- answer 1 of 2, seed 7 ---\nOne\n--- answer 2 of 2, seed 8 ---\nTwo\n"
    assert done.stderr.endswith(b"stop+length, seed 7\n")
    assert daemon.params("infer" if form else "infer_stream")["n"] == 2


def test_the_first_of_several_answers_shows_as_it_comes_below_the_seed_that_was_sent(daemon: FakeDaemon) -> None:
    daemon.pieces = [piece_of(1, "Later"), piece_of(0, "First")]
    daemon.silent_after = 2
    with carctl_on_terminal("--socket", daemon.path, "infer", "Hi", "-n", "2") as terminal:
        terminal.read_until(b"First")
        interrupt(terminal.process)
        seed = daemon.params("infer_stream")["seed"]
        assert terminal.end() == f"--- answer 1 of 2, seed {seed} ---\nFirst\n".encode()


def test_a_refused_option_names_itself(daemon: FakeDaemon) -> None:
    daemon.answers["infer"] = RpcError("invalid_params", param="top_p")
    done = carctl("--socket", daemon.path, "infer", "Hi", "--json", "--top-p", "7")
    assert (done.returncode, done.stdout, done.stderr[:30]) == (1, b"", b"carctl: invalid_params: top_p:")


@pytest.mark.parametrize("form", ["--no-stream", "--json"])
def test_ctrl_c_cancels_an_answer_in_one_piece_too(daemon: FakeDaemon, form: str) -> None:
    daemon.silent.add("infer")
    with carctl_on_pipe("--socket", daemon.path, "infer", "Hi", form) as process:
        daemon.wait_for("infer")
        interrupt(process)
    assert process.returncode == 130
    daemon.wait_for("$/cancelRequest")
