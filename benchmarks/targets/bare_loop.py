"""The limit of a case: its requests in one plain loop over llama.cpp, without daemon, clients, text or scheduling.

`BareLoop` runs this module as a process: it reads a case from standard input, prints a line when it is ready, then the
figures of each workload that it reads. What it does to be fast: the lowest free sequence first, decode rows in the runs
that cost least by what they were measured to cost, arrivals of equal length prefilled together.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import groupby

import msgspec

from benchmarks.comparison import Case, Measure
from car_base.capacity.curve import BATCH_SIZES
from car_base.ipc.frames import Prepared, Run
from car_client.carctl.bench.figures import Figures, TimedAnswer, summary
from car_client.carctl.bench.workload import PlannedRequest, Workload
from car_engine.grammar.constraint import Constraints
from car_engine.llama.context import LlamaContext
from car_engine.llama.library import silence
from car_engine.llama.model import LlamaModel
from car_engine.llama.sampler_chains import SamplerChains
from car_engine.llama.tokens import Vocabulary
from car_engine.sizing import default_threads
from car_protocol.infer import GenerationOptions

COMMAND = (sys.executable, "-m", "benchmarks.targets.bare_loop")
_RUN = Run(Prepared(0, b"", 1), GenerationOptions(temperature=0, ignore_eos=True, seed=1))
_REPEATS = 3


class BareLoop:
    """A plain loop that packs its rows."""

    name = "bare loop"

    @contextmanager
    def started(self, case: Case) -> Iterator[Measure]:
        """Run it with the context of a case; it says when it is ready."""
        with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            _ask(process, case)
            yield partial(_measured, process)
            process.stdin.close()


def _measured(process: "subprocess.Popen[bytes]", workload: Workload) -> Figures:
    return msgspec.json.decode(_ask(process, workload), type=Figures)


def _ask(process: "subprocess.Popen[bytes]", question: Case | Workload) -> bytes:
    """Return the line that answers a line."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(question) + b"\n")
    process.stdin.flush()
    if not (line := process.stdout.readline()):
        raise RuntimeError("the bare loop ended")
    return line


class Lane:
    """One answer in the making, on the sequence of its number."""

    def __init__(self, number: int, request: PlannedRequest) -> None:
        assert isinstance(request.prompt, list)
        self.number = number
        self.prompt = request.prompt
        self.max_tokens = request.max_tokens
        self.asked = time.perf_counter()
        self.came: list[float] = []
        self.token = -1

    @property
    def position(self) -> int:
        """The position of its last token."""
        return len(self.prompt) + len(self.came) - 1

    def take(self, token: int) -> None:
        """Take the next token."""
        self.token = token
        self.came.append(time.perf_counter())

    @property
    def answer(self) -> TimedAnswer:
        """Its times."""
        return TimedAnswer(self.asked, self.came, len(self.came), len(self.prompt))


class Loop:
    """The lanes of one context."""

    def __init__(self, case: Case) -> None:
        silence()
        model = LlamaModel(case.model, gpu_layers=0, progress=lambda _done: None)
        threads = default_threads(model.size_bytes)
        self._context = LlamaContext(
            model, sequences=case.sequences, context_tokens=case.context_tokens, threads=threads
        )
        vocabulary = Vocabulary(model)
        constraints = Constraints(vocabulary.pieces, vocabulary.ends, vocabulary.control)
        chains = SamplerChains(vocabulary, constraints, self._context.context_tokens)
        # Greedy samplers remember nothing: one serves all answers of its sequence.
        self._samplers = [chains.build(_RUN, []) for _ in range(case.sequences)]
        self._costs = [0.0, *(self._cost(rows) for rows in range(1, case.sequences + 1))]
        self._most = case.sequences
        self._lanes: dict[int, Lane] = {}
        self._runs: list[range] = []
        self._answers: list[TimedAnswer] = []

    def run(self, workload: Workload) -> Figures:
        """Run a workload once."""
        if workload.prompts.high > (most := BATCH_SIZES["cpu"].call):
            raise ValueError(f"a prompt of the bare loop has at most {most} tokens")
        self._most = min(workload.clients, len(self._samplers))
        self._answers = []
        begin, cpu = time.perf_counter(), time.process_time()
        end = begin + (workload.seconds or float("inf"))
        requests = workload.all_requests()
        while self._admit(requests if time.perf_counter() < end else iter(())) or self._lanes:
            self._step()
        last = min(end, max(answer.piece_times[-1] for answer in self._answers))
        own_cpu = (time.process_time() - cpu) / (time.perf_counter() - begin)
        return summary(self._answers, begin + workload.warm_up, last, own_cpu)

    def _admit(self, requests: Iterator[PlannedRequest]) -> bool:
        """Give free sequences to what is asked next, lowest first, and compute the prompts."""
        free = [number for number in range(self._most) if number not in self._lanes]
        arrived = [Lane(number, request) for number, request in zip(free, requests, strict=False)]
        self._lanes |= {lane.number: lane for lane in arrived}
        # Neighbours with prompts of one length share a call: llama.cpp would split others.
        for _, run in groupby(enumerate(arrived), lambda each: (each[1].number - each[0], len(each[1].prompt))):
            self._prefill([lane for _, lane in run])
        self._end_finished()
        if arrived:
            self._pack()
        return bool(arrived)

    def _prefill(self, lanes: list[Lane]) -> None:
        length = len(lanes[0].prompt)
        together = self._context.batch_tokens // length
        for first in range(0, len(lanes), together):
            self._prefill_together(lanes[first : first + together], length)

    def _prefill_together(self, lanes: list[Lane], length: int) -> None:
        self._decode(
            [token for lane in lanes for token in lane.prompt],
            [*range(length)] * len(lanes),
            [lane.number for lane in lanes for _ in range(length)],
            [row == length - 1 for _ in lanes for row in range(length)],
        )
        for place, lane in enumerate(lanes, 1):
            lane.take(self._context.sample(self._samplers[lane.number], place * length - 1))

    def _step(self) -> None:
        for run in self._runs:
            self._decode_run(run)
        if self._end_finished():
            self._pack()

    def _pack(self) -> None:
        self._runs = packed(sorted(self._lanes), self._costs.__getitem__)

    def _decode_run(self, run: range) -> None:
        lanes = [self._lanes.get(number) for number in run]
        self._decode(
            [lane.token if lane else 0 for lane in lanes],
            [lane.position if lane else 0 for lane in lanes],
            list(run),
            [lane is not None for lane in lanes],
        )
        for row, lane in enumerate(lanes):
            if lane:
                lane.take(self._context.sample(self._samplers[lane.number], row))
            else:
                self._context.cut(run[row], 0)

    def _end_finished(self) -> bool:
        finished = [lane for lane in self._lanes.values() if len(lane.came) == lane.max_tokens]
        for lane in finished:
            self._answers.append(lane.answer)
            self._context.cut(lane.number, 0)
            del self._lanes[lane.number]
        return bool(finished)

    def _cost(self, rows: int) -> float:
        """Return what a decode of so many rows costs, one of each sequence."""
        seconds = []
        for _ in range(_REPEATS):
            started = time.perf_counter()
            self._decode([0] * rows, [0] * rows, list(range(rows)), [True] * rows)
            seconds.append(time.perf_counter() - started)
            for number in range(rows):
                self._context.cut(number, 0)
        return min(seconds)

    def _decode(self, tokens: list[int], positions: list[int], numbers: list[int], outputs: list[bool]) -> None:
        code = self._context.decode(tokens, positions, numbers, outputs)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")


def packed(numbers: Sequence[int], cost: Callable[[int], float]) -> list[range]:
    """Return the runs of ascending numbers that together cost least, holes filled with padding.

    `cost` is that of so many consecutive rows.
    """

    @cache
    def best(start: int) -> tuple[float, list[range]]:
        if start == len(numbers):
            return 0.0, []
        ways = []
        for end in range(start, len(numbers)):
            run = range(numbers[start], numbers[end] + 1)
            seconds, rest = best(end + 1)
            ways.append((cost(len(run)) + seconds, [run, *rest]))
        return min(ways, key=lambda way: way[0])

    return best(0)[1]


def main() -> None:
    """Read a case, then workloads until there are no more."""
    loop = Loop(msgspec.json.decode(sys.stdin.buffer.readline(), type=Case))
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        figures = loop.run(msgspec.json.decode(line, type=Workload))
        print(msgspec.json.encode(figures).decode(), flush=True)


if __name__ == "__main__":
    main()
