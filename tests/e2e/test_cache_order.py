"""Cache-aware order: questions about a few documents that wait for few sequences."""

import tempfile
from pathlib import Path

from tests.e2e.support import configured, running

CONFIG = "[scheduler]\nsaved_bytes = 0\n[models.guide]\nsequences = 1\ncontext_tokens = 1024\n"
WORDS = ("river", "stone", "lamp", "bread", "star")


def test_questions_about_the_same_document_follow_each_other_where_its_cells_are() -> None:
    documents = [" ".join(f"{word}{name}" for word in WORDS * 20) for name in "abc"]
    prompts = [f"{documents[number % 3]} question {number}" for number in range(15)]
    with (
        tempfile.TemporaryDirectory(prefix="card-") as name,
        running(Path(name), *configured(Path(name), CONFIG)) as daemon,
        daemon.connect() as client,
    ):
        requests = [client.send("infer", {"prompt": prompt, "temperature": 0, "max_tokens": 16}) for prompt in prompts]
        usages = [client.response(request)["result"]["usage"] for request in requests]
    prompt_tokens = sum(usage["prompt_tokens"] for usage in usages)
    assert prompt_tokens - sum(usage["cached_tokens"] for usage in usages) < 0.6 * prompt_tokens
