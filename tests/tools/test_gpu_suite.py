"""The GPU suite goes on where a part of it fails, and keeps the figures of the others."""

from tools.gpu.suite import part
from tools.gpu.verdicts import Verdict, passed


def test_a_part_that_fails_is_a_verdict_that_does_not_hold() -> None:
    def fails() -> list[Verdict]:
        raise RuntimeError("the daemon ended with 69")

    (verdict,) = part("4b q4_0: answers", fails)
    assert (verdict.check, verdict.found) == ("4b q4_0: answers", "failed: RuntimeError: the daemon ended with 69")
    assert not passed([verdict])


def test_a_part_that_ends_has_its_own_verdicts() -> None:
    found = [Verdict("a", True, "1"), Verdict("b", None, "needs a GPU")]
    assert part("any", lambda: found) == found
