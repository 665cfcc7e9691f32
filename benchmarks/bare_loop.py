"""The limit: the same context and samplers in a bare loop, without daemon, clients, text or scheduling.

Prints tokens per second. All streams start and end together, so that every step is as full as it can be.
"""

import time

from benchmarks.workload import Workload, read_arguments
from car_daemon.engine.assembly import default_threads
from car_daemon.engine.frames import Run
from car_daemon.engine.grammar.constraint import Constraints
from car_daemon.engine.llama.context import LlamaContext
from car_daemon.engine.llama.model import LlamaModel, silence
from car_daemon.engine.llama.sampler import Sampler
from car_daemon.engine.llama.sampling import SamplerChains
from car_daemon.engine.llama.tokens import Vocabulary
from car_protocol.sampling import Sampling

_RUN = Run(
    key=0,
    tokens=b"",
    max_tokens=1,
    sampling=Sampling(temperature=0, ignore_eos=True),
    seed=1,
    stop=[],
    return_tokens=False,
)


def main() -> None:
    """Load the model, warm up, time the workload."""
    workload, path = read_arguments()
    silence()
    model = LlamaModel(str(path), gpu_layers=0, progress=lambda _done: None)
    context = LlamaContext(
        model, sequences=workload.streams, context_tokens=1024, threads=default_threads(model.size_bytes)
    )
    vocabulary = Vocabulary(model)
    constraints = Constraints(vocabulary.pieces, vocabulary.ends, vocabulary.control)
    chains = SamplerChains(vocabulary, constraints, context.context_tokens)
    samplers = [chains.build(_RUN, []) for _ in range(workload.streams)]
    _round(context, samplers, workload, turn=-1)
    started = time.perf_counter()
    for turn in range(workload.rounds):
        _round(context, samplers, workload, turn)
    print(workload.tokens / (time.perf_counter() - started))


def _round(context: LlamaContext, samplers: list[Sampler], workload: Workload, turn: int) -> None:
    streams = range(workload.streams)
    prompts = [workload.prompt(stream, turn) for stream in streams]
    size = workload.prompt_tokens
    _decode(
        context,
        [token for prompt in prompts for token in prompt],
        [position for _ in streams for position in range(size)],
        [stream for stream in streams for _ in range(size)],
        [row == size - 1 for _ in streams for row in range(size)],
    )
    tokens = [context.sample(samplers[stream], (stream + 1) * size - 1) for stream in streams]
    for position in range(size, size + workload.answer_tokens - 1):
        _decode(context, tokens, [position] * len(streams), list(streams), [True] * len(streams))
        tokens = [context.sample(samplers[stream], stream) for stream in streams]
    for stream in streams:
        context.cut(stream, 0)


def _decode(
    context: LlamaContext, tokens: list[int], positions: list[int], numbers: list[int], outputs: list[bool]
) -> None:
    code = context.decode(tokens, positions, numbers, outputs)
    if code != 0:
        raise RuntimeError(f"llama_decode returned {code}")


main()
