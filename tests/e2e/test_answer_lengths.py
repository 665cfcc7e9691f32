"""The length of an answer: at most `max_tokens`, at most what fits, at most what the model's entry says."""

from collections.abc import Callable
from pathlib import Path

from car_base.guide import PATH
from tests.e2e.support import Daemon, configured

Start = Callable[..., Daemon]
FILLER = {"prompt": "Once", "ignore_eos": True, "seed": 1}


def test_eight_requests_for_far_more_than_fits_run_at_once_and_end_at_the_context(start: Start) -> None:
    daemon = start("--capacity", "8", "--context-tokens", "512").ready()
    with daemon.connect() as client:
        params = {"tokens": [40] * 3, "ignore_eos": True, "seed": 1, "max_tokens": 60_000}
        ids = [client.send("infer_stream", params) for _ in range(8)]
        client.first_chunk(ids[-1])
        capacity = client.result("inference/capacity")
        assert (capacity["in_use"], capacity["queued"]) == (8, 0)
        for each in ids:
            answer = client.response(each)["result"]
            usage = answer["usage"]
            assert answer["finish_reason"] == "length"
            assert usage["prompt_tokens"] + usage["completion_tokens"] == 512


def test_an_answer_without_a_length_ends_at_the_entrys_and_a_reload_changes_that(start: Start, folder: Path) -> None:
    def entry(line: str) -> tuple[str, str]:
        return configured(
            folder, f'default_model = "mine"\n[models.mine]\npath = "{PATH}"\ncontext_tokens = 512\n{line}\n'
        )

    daemon = start(*entry("default_max_tokens = 5")).ready()
    with daemon.connect() as client:

        def length(**given: int) -> int:
            return int(client.result("infer", {**FILLER, **given})["usage"]["completion_tokens"])

        assert (length(), length(max_tokens=7)) == (5, 7)
        entry("default_max_tokens = 9")
        client.result("daemon/reload")
        assert length() == 9
        entry("")
        client.result("daemon/reload")
        assert length() > 256
