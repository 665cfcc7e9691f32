"""`carctl embed`, `tokenize`, `models` and `metrics`."""

import msgspec
import pytest

from car_protocol.errors import RpcError
from tests.client.carctl.command import carctl
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import model


def shown(daemon: FakeDaemon, *arguments: str, input: bytes | None = None) -> str:
    """Return the output of a command that succeeds."""
    done = carctl("--socket", daemon.path, *arguments, input=input)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_a_vector_a_line(daemon: FakeDaemon) -> None:
    assert shown(daemon, "embed", "one", "two", "--model", "guide") == "[0.6,0.8]\n[1.0,0.0]\n"
    assert daemon.params("embed") == {"input": ["one", "two"], "model": "guide", "normalize": True}


def test_a_dash_embeds_every_line_of_standard_input(daemon: FakeDaemon) -> None:
    shown(daemon, "embed", "-", "--raw", input="é\n\n two".encode())
    assert daemon.params("embed") == {"input": ["é", "", " two"], "normalize": False}


def test_more_texts_than_one_request_takes_go_in_several(daemon: FakeDaemon) -> None:
    shown(daemon, "embed", "-", input=b"x\n" * 600)
    sizes = [len(msgspec.json.decode(call.params)["input"]) for call in daemon.calls if call.method == "embed"]
    assert sizes == [256, 256, 88]


def test_nothing_to_embed_is_no_request(daemon: FakeDaemon) -> None:
    assert shown(daemon, "embed", "-", input=b"") == ""


def test_the_tokens_of_a_text_are_one_array(daemon: FakeDaemon) -> None:
    assert shown(daemon, "tokenize", "abc", "--add-special") == "[1,2,3]\n"
    assert daemon.params("tokenize") == {"text": "abc", "add_special": True, "parse_special": False}


def test_a_count_of_a_conversation_leaves_its_tokens_out(daemon: FakeDaemon) -> None:
    assert shown(daemon, "tokenize", "--chat", "Hi", "--count") == "3\n"
    sent = daemon.params("tokenize")
    assert (sent["messages"], sent["count_only"]) == ([{"role": "user", "content": "Hi"}], True)
    assert "text" not in sent


def test_a_dash_tokenizes_standard_input_to_its_last_byte(daemon: FakeDaemon) -> None:
    assert shown(daemon, "tokenize", "-", "--count", input=b"a\n\n") == "3\n"
    assert daemon.params("tokenize")["text"] == "a\n\n"


def test_pieces_are_tokens_with_their_text(daemon: FakeDaemon) -> None:
    assert shown(daemon, "tokenize", "abc", "--pieces") == '[1,"abc"]\n[2,"abc"]\n[3,"abc"]\n'
    assert daemon.params("detokenize") == {"tokens": [3], "special": True}


@pytest.mark.parametrize("command", ["embed", "tokenize"])
def test_input_that_is_not_utf8_is_wrong_usage(daemon: FakeDaemon, command: str) -> None:
    done = carctl("--socket", daemon.path, command, "-", input=b"\xff")
    assert (done.returncode, done.stderr) == (2, b"carctl: the text is not UTF-8\n")


def test_models_are_a_table(daemon: FakeDaemon) -> None:
    broken = model(name="bro\x1bken", can=()) | {"state": "failed", "reason": "no\x07model", "size_bytes": None}
    daemon.answers["models/list"] = {"models": [model(can=("chat", "embed")), broken | {"replicas": 2}]}
    assert shown(daemon, "models", "list") == (
        "model            state   size   context  capacity  device  can\n"
        "guide (default)  ready   3 MiB  2048     4         cpu     chat, embed\n"
        "bro␛ken          failed  -      2048     4         cpu x2  -\n"
        "  no␇model\n"
    )


def test_models_as_json_are_the_result_as_it_came(daemon: FakeDaemon) -> None:
    assert msgspec.json.decode(shown(daemon, "models", "list", "--json")) == daemon.answers["models/list"]


def test_a_model_that_is_not_there_is_wrong_usage(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "models", "show", "gudie")
    assert (done.returncode, done.stderr) == (
        2,
        b"carctl: unknown model 'gudie', did you mean 'guide'?; `carctl models list` shows them\n",
    )


def test_metrics_are_the_text_as_it_came(daemon: FakeDaemon) -> None:
    assert shown(daemon, "metrics") == "card_up 1\n"


def test_a_daemon_without_metrics_is_older(daemon: FakeDaemon) -> None:
    daemon.answers["daemon/metrics"] = RpcError("method_not_found")
    done = carctl("--socket", daemon.path, "metrics")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.endswith(b"; the daemon may be older than this command\n")


def test_a_long_list_of_abilities_is_shown_whole(daemon: FakeDaemon) -> None:
    abilities = ("chat", "embed", "rerank", "decide", "tools", "images", "audio", "thinking", "fill")
    daemon.answers["models/list"] = {"models": [model(name="a-model-with-a-rather-long-name", can=abilities)]}
    assert ", ".join(abilities) in shown(daemon, "models", "list")
