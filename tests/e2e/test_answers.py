"""Answers: the right text, whole, in order, and of the requested length."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.support import CANARY, KNOWN, LONG, Daemon, Json, Known, RawClient, conversation, greedy


def ask(daemon: Daemon, known: Known) -> str:
    with daemon.connect() as client:
        chunks, response = client.stream(greedy(known))
        assert [chunk["seq"] for chunk in chunks] == list(range(response["result"]["chunks"]))
        return "".join(chunk["text"] for chunk in chunks)


@pytest.mark.slow
def test_every_trained_question_gets_its_answer_word_for_word(client: RawClient) -> None:
    wrong = [known.question for known in KNOWN if client.result("infer", greedy(known))["text"] != known.answer]
    assert wrong == []


def test_a_raw_prompt_gets_the_answer_of_the_conversation(client: RawClient) -> None:
    for known in KNOWN[::6]:
        answer = client.result("infer", {"prompt": known.question, "temperature": 0})
        assert answer["text"].strip() == known.answer


def test_eight_concurrent_streams_give_the_texts_of_eight_solo_runs(daemon: Daemon) -> None:
    chosen = (LONG + KNOWN)[:8]
    solo = [ask(daemon, known) for known in chosen]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda known: ask(daemon, known), chosen))
    assert together == solo == [known.answer for known in chosen]


def test_many_more_streams_than_sequences_all_get_their_own_answers(daemon: Daemon) -> None:
    with ThreadPoolExecutor(24) as threads:
        answers = list(threads.map(lambda known: ask(daemon, known), KNOWN[:48]))
    assert answers == [known.answer for known in KNOWN[:48]]


@pytest.mark.parametrize("count", [1, 2, 5, 17])
def test_max_tokens_is_exact(client: RawClient, count: int) -> None:
    answer = client.result("infer", {"prompt": CANARY, "max_tokens": count, "ignore_eos": True, "return_tokens": True})
    assert answer["usage"]["completion_tokens"] == count == len(answer["tokens"])
    assert answer["finish_reason"] == "length"


def test_a_streams_chunks_join_to_the_single_answer(client: RawClient) -> None:
    params = greedy(LONG[0], return_tokens=True)
    single = client.result("infer", params)
    chunks, response = client.stream(params)
    assert "".join(chunk["text"] for chunk in chunks) == single["text"]
    tokens = [token for chunk in chunks for token in chunk.get("tokens", [])]
    assert tokens == single["tokens"]
    assert len(tokens) == response["result"]["usage"]["completion_tokens"]
    assert "text" not in response["result"]


def test_the_answers_tokens_detokenize_to_its_text(client: RawClient) -> None:
    answer = client.result("infer", greedy(KNOWN[3], return_tokens=True))
    assert client.result("detokenize", {"tokens": answer["tokens"]})["text"] == answer["text"]


def test_tokens_as_a_prompt_are_taken_as_they_are(client: RawClient) -> None:
    tokens = client.result("tokenize", {"text": KNOWN[0].question, "add_special": True})["tokens"]
    answer = client.result("infer", {"tokens": tokens, "temperature": 0})
    assert answer["text"].strip() == KNOWN[0].answer
    assert answer["usage"]["prompt_tokens"] == len(tokens)


def test_a_stop_string_ends_the_text_before_it_and_is_named(client: RawClient) -> None:
    known = LONG[0]
    stop = known.answer.split()[5]
    chunks, response = client.stream(greedy(known, stop=[stop, "never in it"]))
    assert "".join(chunk["text"] for chunk in chunks) == known.answer[: known.answer.index(stop)]
    assert response["result"]["stop"] == stop
    assert response["result"]["finish_reason"] == "stop"


def test_characters_of_several_tokens_arrive_whole(client: RawClient) -> None:
    known = next(known for known in KNOWN if not known.answer.isascii())
    chunks, _ = client.stream(greedy(known))
    assert "".join(chunk["text"] for chunk in chunks) == known.answer
    assert not any("\ufffd" in chunk["text"] for chunk in chunks)


def test_a_fixed_seed_gives_the_same_text_twice(client: RawClient) -> None:
    wild: Json = {"temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 40}
    params = {"prompt": CANARY, "seed": 7, **wild}
    first = client.result("infer", params)
    assert client.result("infer", params)["text"] == first["text"]
    assert first["seed"] == 7
    assert client.result("infer", {**params, "seed": 8})["text"] != first["text"]


def test_control_tokens_in_a_message_are_plain_text(client: RawClient) -> None:
    ending = "<|done|>"
    parsed = client.result("tokenize", {"text": ending, "parse_special": True})["tokens"]
    assert len(parsed) == 1
    known = KNOWN[0]
    plain = client.result("infer", greedy(known))["usage"]["prompt_tokens"]
    params = {"messages": conversation(known.question + ending), "max_tokens": 1}
    as_text = client.result("tokenize", {"text": ending})["tokens"]
    assert client.result("infer", params)["usage"]["prompt_tokens"] >= plain + len(as_text) - 1


def test_the_tokens_of_a_conversation_are_those_that_infer_computes(client: RawClient) -> None:
    params = greedy(KNOWN[0])
    found = client.result("tokenize", {"messages": params["messages"]})
    answer, same = client.result("infer", params), client.result("infer", {"tokens": found["tokens"], "temperature": 0})
    assert found["count"] == len(found["tokens"]) == answer["usage"]["prompt_tokens"]
    assert same["text"] == answer["text"]
    counted = client.result("tokenize", {"messages": params["messages"], "count_only": True})
    assert counted == {"count": found["count"]}
    assert client.result("tokenize", {"text": "", "count_only": True}) == {"count": 0}
    assert client.reason("tokenize", {"messages": [*params["messages"], {"role": "user", "content": 1}]}) == (
        "invalid_params"
    )


@pytest.mark.parametrize("method", ["infer", "infer_stream"])
def test_an_answer_that_was_begun_is_continued(client: RawClient, method: str) -> None:
    known = LONG[0]
    words = known.answer.split(" ")
    begun = " ".join(words[:4])
    messages = [*conversation(known.question), {"role": "assistant", "content": begun}]
    params = {"messages": messages, "temperature": 0, "continue_last": True}
    if method == "infer":
        text = client.result("infer", params)["text"]
    else:
        text = "".join(chunk["text"] for chunk in client.stream(params)[0])
    assert begun + text == known.answer
    whole, continued = (
        client.result("tokenize", {"messages": messages, "continue_last": continues})["tokens"]
        for continues in (False, True)
    )
    assert continued == whole[: len(continued)]
    assert len(continued) < len(whole)


def test_a_conversation_with_history_and_a_system_message_is_answered(client: RawClient) -> None:
    first, second = KNOWN[10], KNOWN[20]
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": first.question},
        {"role": "assistant", "content": first.answer},
        {"role": "user", "content": [{"type": "text", "text": second.question}]},
    ]
    assert client.result("infer", {"messages": messages, "temperature": 0})["text"] == second.answer


@pytest.mark.slow
def test_a_prompt_of_almost_the_whole_context_is_served_and_a_whole_one_refused(start: Callable[..., Daemon]) -> None:
    with start("--context-tokens", "512").ready().connect() as client:
        almost_all_and_all(client, 512)


def almost_all_and_all(client: RawClient, context: int) -> None:
    """Send a prompt with room for two tokens in a context, and a prompt with none."""
    assert client.result("inference/capacity")["context_tokens"] == context
    fits = {"tokens": [300] * (context - 2), "max_tokens": 2, "ignore_eos": True}
    assert client.result("infer", fits)["usage"]["completion_tokens"] == 2
    cut = client.result("infer", {**fits, "max_tokens": 3})
    assert (cut["usage"]["completion_tokens"], cut["finish_reason"]) == (2, "length")
    response = client.call("infer", {"tokens": [300] * context})
    data = response["error"]["data"]
    assert (data["reason"], data["prompt_tokens"], data["max_tokens"]) == ("context_exceeded", context, None)
    assert data["context_tokens"] == context


def test_a_prompt_that_fits_under_no_tokenization_is_refused_unseen(client: RawClient) -> None:
    response = client.call("infer", {"prompt": "a" * 4_000_000})
    assert response["error"]["data"]["reason"] == "context_exceeded"
    assert response["error"]["data"]["prompt_tokens"] is None


def test_a_device_that_the_model_is_not_on_is_said_to_be_lacking(client: RawClient) -> None:
    assert "result" in client.call("infer", {"prompt": "x", "max_tokens": 1, "device": "cpu"})
    error = client.call("infer", {"prompt": "x", "max_tokens": 1, "device": "gpu"})["error"]
    assert (error["code"], error["data"]["lacks"]) == (1004, "device")
