"""Grammars that are written to take memory take a bounded amount, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is counted in KiB on Linux alone"),
]

ROOT = Path(__file__).parents[3]
# The most of nineteen that were tried took 114 MiB. Schemas beyond the bounds of `is_too_wide` are refused before.
BOUND_MIB = 256
MEASURE = """
import resource, sys
from functools import reduce
from car_engine.grammar.constraint import ConstraintError
from car_engine.grammar.gbnf import parse
from car_engine.grammar.lark import as_lark
from car_engine.grammar.schema import as_lark as schema_as_lark
from tests.engine.grammar.schemas import constraints

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def doubled(schema, _):
    return {"type": "object", "properties": {"a": schema, "b": schema}, "required": ["a"]}

hostile = {
    "alternatives": lambda: as_lark(parse("root ::= " + " | ".join(f'"v{n}"' for n in range(50_000)))),
    "long values": lambda: schema_as_lark({"enum": ["x" * 4000 + str(n) for n in range(1000)]}),
    "objects that double": lambda: schema_as_lark(reduce(doubled, range(12), {"type": "string"})),
}
grammars = constraints()
grammars.compile(0, as_lark(parse('root ::= "a"')))
before = peak()
try:
    text = hostile[sys.argv[1]]()
    grammars.compile(0, text)
    constraint = grammars.start(0, text)
    for _ in range(150):
        allowed = constraint.allowed()
        constraint.advance(int(allowed[len(allowed) // 2]))
        if constraint.complete:
            break
except ConstraintError:
    pass
print((peak() - before) // 1024)
"""


@pytest.mark.parametrize("name", ["alternatives", "long values", "objects that double"])
def test_a_grammar_that_is_written_to_take_memory_takes_a_bounded_amount(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, name], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) < BOUND_MIB
