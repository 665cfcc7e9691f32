"""The refusal of a prompt that is longer than the context, and its remedy."""

import pytest

from car_engine.prompt.context_limit import ContextLimit


@pytest.mark.parametrize(
    ("alone", "tokens", "helps"),
    [(8192, 3000, True), (8192, None, True), (8192, 8192, False), (8192, 10_060, False), (2048, 3000, False)],
)
def test_a_longer_context_is_advised_if_the_prompt_fits_it(alone: int, tokens: int | None, helps: bool) -> None:
    refusal = ContextLimit(2048, 10, alone).exceeded(tokens, None)
    assert ("context_tokens = 8192" in str(refusal.data.get("why"))) is helps
    assert refusal.data.get("longest_tokens") == (alone if alone > 2048 else None)
