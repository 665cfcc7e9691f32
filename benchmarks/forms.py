"""The cost of constraints: grammars that the model agrees with and never agrees with, logprobs, stop strings.

`python -m benchmarks.forms` prints milliseconds a token, and ratios to plain text taken in turn in one run.
"""

import statistics
from typing import Any

from benchmarks.generator import generate
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from car_client.carctl.load.workload import Workload

BASE: dict[str, Any] = {"temperature": 0.8, "seed": 7, "ignore_eos": True, "cache_prompt": False}
JSON_GRAMMAR = r"""
root ::= value
value ::= object | array | string | number
object ::= "{" (string ":" value ("," string ":" value)*)? "}"
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" [^"\\\x00-\x1f]* "\""
number ::= [0-9]+
"""
FORMS: dict[str, dict[str, Any]] = {
    "plain text": {},
    "a grammar it agrees with (any text)": {"grammar": r"root ::= [^\x00]*"},
    "a schema it never agrees with": {"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 500}},
    "a GBNF grammar it never agrees with": {"grammar": JSON_GRAMMAR},
    "20 log-probabilities": {"logprobs": 20},
    "16 stop strings": {"stop": [f"never {number}" for number in range(16)]},
    "progress": {"progress": True},
    "dry": {"dry": {"multiplier": 0.8}},
    "mirostat": {"mirostat": {"version": 2}},
}
ROUNDS = 3


def main() -> None:
    """Measure every form, alone and for eight streams."""
    report = Report("forms")
    with serving(model_file("q8_0"), "--capacity", "8", "--context-tokens", "1024") as socket:
        for streams in (1, 8):
            _measure(str(socket), streams, report)
    report.close()


def _measure(address: str, streams: int, report: Report) -> None:
    taken: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(ROUNDS):
        for form, more in FORMS.items():
            workload = Workload(clients=streams, requests=streams, options=BASE | more)
            taken[form].append(1000 * streams / generate(address, workload).tokens_per_s)
    for form, seen in taken.items():
        ratio = statistics.median(one / plain for one, plain in zip(seen, taken["plain text"], strict=True))
        report.say(f"{streams} x {form}: ms a token, ratio to plain", statistics.median(seen), ratio)


if __name__ == "__main__":
    main()
