"""Ask the built-in guide model all it was taught, through llama.cpp: `python -m tools.check_guide_model`.

Every case runs alone and in a batch of eight with prompts in chunks of 16. Exit 1 if a main question fails,
as a conversation or as a bare prompt.
"""

import argparse
import sys
from itertools import groupby
from pathlib import Path

from tools.guide import corpus
from tools.guide.checks import REQUIRED, Case, Cases
from tools.guide.decoding import Completion, Decoder

MODEL = Path(__file__).parents[1] / "daemon" / "car_base" / "guide" / "guide.gguf"
CONTEXT = 4096
WAYS = {"alone": (1, 512), "eight at once": (8, 16)}  # name: (sequences, prompt tokens a step)

Outcome = tuple[Case, Completion]


def main() -> int:
    """Run every case in both ways and print a table; the number of the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--failures", action="store_true", help="print every wrong answer")
    arguments = parser.parse_args()
    known = corpus.load()
    failed = False
    for way, (sequences, chunk) in WAYS.items():
        decoder = Decoder(arguments.model, sequences=sequences, chunk=chunk, context=CONTEXT)
        cases = Cases(known, decoder).all()
        outcomes = list(zip(cases, decoder.complete([case.prompt for case in cases]), strict=True))
        decoder.close()
        failed |= any(_matters(case) and not case.is_right(completion) for case, completion in outcomes)
        _report(way, outcomes, failures=arguments.failures)
    _report_lengths(outcomes)
    return 1 if failed else 0


def _matters(case: Case) -> bool:
    return case.main and case.mode in REQUIRED


def _report(way: str, outcomes: list[Outcome], *, failures: bool) -> None:
    """One line a mode: how many are right, and the smallest margin among those."""
    print(f"\n{way:32} {'main':>9} {'all':>11}  smallest margin")
    for mode, group in groupby(outcomes, key=lambda outcome: outcome[0].mode):
        asked = list(group)
        right = [outcome for outcome in asked if outcome[0].is_right(outcome[1])]
        mains = sum(case.main for case, _ in asked)
        right_mains = sum(case.main for case, _ in right)
        margin = min((completion.margin for _, completion in right), default=0.0)
        print(f"  {mode:30} {right_mains:4}/{mains:<4} {len(right):5}/{len(asked):<5}  {margin:.2f}")
        if failures:
            for case, completion in asked:
                if not case.is_right(completion):
                    print(f"    {case.question!r} -> {completion.text!r}")


def _report_lengths(outcomes: list[Outcome]) -> None:
    """The longest answers in tokens, their end token included."""
    longest = {
        case.question: completion.tokens
        for case, completion in outcomes
        if case.mode == "conversation" and case.main and case.is_right(completion)
    }
    print("\nlongest answers, in tokens")
    for question, tokens in sorted(longest.items(), key=lambda item: -item[1])[:8]:
        print(f"  {tokens:4}  {question}")


if __name__ == "__main__":
    sys.exit(main())
