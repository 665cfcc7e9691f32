"""Running requests: their sequences and images, from the command that starts each to its end."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from msgspec import structs

from car_base.ipc.codec import TOKEN_BYTES, tokens_of
from car_base.ipc.frames import End, Fault, Forget, RequestUpdate, Run
from car_base.ipc.types import AdapterSet
from car_engine.batching.guesses import PromptLookup
from car_engine.batching.prefix_cache import PrefixCache
from car_engine.batching.sequences import Grid, Sequence
from car_engine.grammar.constraint import ConstraintError
from car_engine.images.ahead import EncodeAhead
from car_engine.images.awaited_images import AwaitedImages
from car_engine.images.encoder import Encode, Encoded
from car_engine.output.reader import NOTHING, Released
from car_engine.runner.decision import Running, RunningDecision, reading_of
from car_engine.runner.generation import AnswerTokens, Generation
from car_engine.runner.parking import ParkedRequest, ParkingLot
from car_engine.runner.stepper import Outcome, SampledToken, SamplingTurns, TokenSampler
from car_engine.runner.texts import NO_SEQUENCE
from car_protocol.answer import Usage


class RunningSequences:
    """The request of every busy sequence, and the sequence of every running request."""

    def __init__(self, cache: PrefixCache, sampling: SamplingTurns, images: AwaitedImages) -> None:
        self._cache = cache
        self._sampling = sampling
        self._images = images
        self.requests: dict[int, Running] = {}  # by sequence number
        self.sequences: dict[int, Sequence] = {}  # by request key

    def take(self, running: Running, prompt: list[int], namespace: str | None, adapters: AdapterSet) -> Sequence | None:
        """Start a prompt in an idle sequence; None if there is none."""
        sequence = self._cache.start(prompt, namespace, adapters, _grid_of(running), running.own, running.parts)
        return self._seated(running, sequence)

    def take_again(self, parked: ParkedRequest) -> Sequence | None:
        """Start a parked request as `take` does; in other cells if its own are not saved, or others have more."""
        if self._cache.exceeds(parked.prefix, parked.cells):
            parked.saved = None
        running, prefix = parked.running, parked.prefix if parked.saved is None else None
        grid, had = _grid_of(running), parked.cells
        sequence = self._cache.start_in(prefix, parked.prompt, parked.adapters, grid, running.own, had=had)
        return self._seated(running, sequence)

    def _seated(self, running: Running, sequence: Sequence | None) -> Sequence | None:
        if sequence is not None:
            self.requests[sequence.number] = running
            self.sequences[running.key] = sequence
            if isinstance(running, Generation):
                self._sampling.join(sequence, running.sampler)
            else:
                sequence.labels = running.labels
        return sequence

    def leave(self, sequence: Sequence) -> Running:
        """Separate a request from its sequence, and return it."""
        running = self.requests.pop(sequence.number)
        del self.sequences[running.key]
        self._images.cancel(running.key)
        self._sampling.leave(sequence)
        count_cached(sequence, running)
        return running


def _grid_of(running: Running) -> Grid | None:
    return Grid(running.prompt_tokens) if running.reproducible else None


def count_cached(sequence: Sequence, running: Running) -> None:
    """Count the cells that the request did not have to compute since the last call."""
    cached, sequence.cached = sequence.cached, 0
    running.cached_tokens += cached
    running.owed.cached += cached


def paid(sequence: Sequence, running: Running) -> tuple[int, int]:
    """Return the request's work for its next update: cells from the cache, and prompt tokens computed."""
    count_cached(sequence, running)
    return running.owed.paid()


class FailedImages(NamedTuple):
    """A running request whose images could not be encoded."""

    sequence: Sequence
    fault: Fault


class ImageCommands:
    """Applies what is new about the images of requests."""

    def __init__(self, seats: RunningSequences, cache: PrefixCache, images: AwaitedImages) -> None:
        self._seats = seats
        self._cache = cache
        self._images = images

    def apply(self, command: EncodeAhead | Encoded | Forget) -> FailedImages | None:
        """Apply a command; return the request that has to end by it."""
        match command:
            case EncodeAhead():
                self._encode_ahead(command)
            case Encoded():
                return self._add(command)
            case Forget(key):
                self._images.ahead.take(key)
        return None

    def _encode_ahead(self, ahead: EncodeAhead) -> None:
        """Have images encoded for a request without a lease, unless all images are in cells that it may reuse."""
        prepared, prepare = ahead.prepared, ahead.prepare
        prompt = tokens_of(prepared.tokens)
        cells = self._cache.at_hand(prompt, prepare.namespace, prepare.params.adapters)
        self._images.ahead.add(ahead, cached=all(image.start + image.count <= cells for image in prepared.images))

    def _add(self, encoded: Encoded) -> FailedImages | None:
        """Give a running request its encoded images; keep them for a request without a lease."""
        sequence = self._seats.sequences.get(encoded.key)
        if sequence is None:
            self._images.ahead.deliver(encoded)
        if sequence is None or not sequence.images.awaited:
            return None
        if encoded.fault is not None:
            return FailedImages(sequence, encoded.fault)
        self._images.deliver(encoded, sequence)
        return None


class DecodingAbilities(NamedTuple):
    """Abilities of one engine: to guess tokens, to compute the same results as all engines on this kind of CPU.

    Results differ if a model did not load with packed weights, and if llama.cpp computes long prompts on a GPU.
    """

    speculates: bool
    repeats: bool = True


class RunningRequests:
    """The requests that have sequences, and the parked requests, over their lives.

    A request that binds no grammar and need not be reproducible may guess tokens if the engine `speculates`.
    """

    def __init__(
        self,
        *,
        build_sampler: Callable[[Run, list[int]], TokenSampler],
        tokens: AnswerTokens,
        cache: PrefixCache,
        sampling: SamplingTurns,
        images: AwaitedImages,
        parking: ParkingLot,
        abilities: DecodingAbilities,
        clock: Callable[[], float],
    ) -> None:
        self._build_sampler = build_sampler
        self._tokens = tokens
        self.cache = cache
        self._images = images
        self._parking = parking
        self._abilities = abilities
        self._clock = clock
        self._sampled = 0.0  # tokens since the start
        self.ended = 0  # requests that ended by their last token since the loop last looked for commands
        self.seats = RunningSequences(cache, sampling, images)
        self._image_commands = ImageCommands(self.seats, cache, images)

    def __repr__(self) -> str:
        running = self.seats.requests.values()
        tokens = sum(len(each.history) for each in running)
        return f"<RunningRequests running={len(running)} tokens={tokens} {self._parking!r}>"

    @property
    def counters(self) -> dict[str, float]:
        """Totals of the prefix cache, of parked requests and of sampled tokens so far."""
        return {**self.cache.counters, **self._parking.counters, "sampled_tokens": self._sampled}

    def start(self, run: Run) -> list[RequestUpdate]:
        """Start a request; returns its end if that is impossible."""
        encoded = self._images.ahead.take(run.key)
        self.cache.expected.drop(run.key)
        if run.options.reproducible and not self._abilities.repeats:
            return [_unstarted(run, "unrepeatable")]
        try:
            running, prompt = self._made(run)
        except ConstraintError:
            # It compiled when the request was prepared, and has become too complex for the library since.
            return [_unstarted(run, "constraint")]
        if running is None:
            # An engine with a longer context prepared it, and is gone.
            return [_unstarted(run, "context")]
        sequence = self.seats.take(running, prompt, run.namespace, run.options.adapters)
        if sequence is None:
            return [_refused(running, self._clock())]
        self._let_guess(sequence, running, prompt)
        self._hold(sequence, running)
        if isinstance(running, Generation) and sequence.read is not None and sequence.read.parting is not None:
            running.explain(sequence.read.parting, prompt)
        if encoded is not None and encoded.fault is not None:
            return [self._end(sequence, NOTHING, fault=encoded.fault)]
        self._images.request(_encode(running), sequence, encoded)
        return []

    def _made(self, run: Run) -> tuple[Running | None, list[int]]:
        """Return a request as it runs, and its first prompt; None if it does not fit. Raises ConstraintError."""
        if run.prepared.decision is not None:
            decision = RunningDecision(run, self._clock())
            return (decision if decision.longest <= self.cache.context_tokens else None), decision.prompt
        prompt = tokens_of(run.prepared.tokens)
        room = self.cache.context_tokens - len(prompt)
        if room < 1:
            return None, prompt
        sampler = self._build_sampler(run, prompt)
        return Generation(run, sampler, self._tokens, len(prompt), self._clock(), room), prompt

    def park(self, key: int) -> bool:
        """Park a request and free its sequence; False if it does not run."""
        sequence = self.seats.sequences.get(key)
        if sequence is None:
            return False
        running = self.seats.leave(sequence)
        self._parking.park(sequence, running)
        self.cache.vacate(sequence)
        return True

    def let_yield(self, keys: Collection[int]) -> None:
        """Read the prompts of these requests only while no answer is written."""
        for key, sequence in self.seats.sequences.items():
            sequence.yields = key in keys

    def resume(self, key: int) -> list[RequestUpdate]:
        """Resume a parked request; returns its end if no sequence is idle."""
        parked = self._parking.pop(key)
        if parked is None:
            return []
        running = parked.running
        sequence = self.seats.take_again(parked)
        if sequence is None:
            return [_refused(running, self._clock())]
        self._let_guess(sequence, running, [*parked.prompt[: running.prompt_tokens], *running.history])
        self._parking.restore(parked, sequence)
        stops = parked.stops if sequence.prefix is None else sequence.stops
        self.cache.resumed(sequence, parked.prefix, stops, parked.read)
        self._hold(sequence, running)
        self._images.request(_encode(running), sequence)
        return []

    def halt(self, key: int, *, deadline: bool) -> list[RequestUpdate]:
        """End a running or parked request; empty if the key is unknown."""
        sequence = self.seats.sequences.get(key)
        if sequence is not None:
            running = self.seats.requests[sequence.number]
            return [self._end(sequence, running.finish("deadline") if deadline else NOTHING)]
        parked = self._parking.pop(key)
        if parked is None:
            return []
        running = parked.running
        output = running.finish("deadline") if deadline else NOTHING
        running.close()
        end = running.end(self._clock())
        work = running.owed.paid()
        return [RequestUpdate(key, NO_SEQUENCE, output.text, 0, parked.cells, running.extras(output), end, *work)]

    def handle_images(self, command: EncodeAhead | Encoded | Forget) -> list[RequestUpdate]:
        """Apply what is new about the images of a request; returns its end if they could not be encoded."""
        failed = self._image_commands.apply(command)
        return [] if failed is None else [self._end(failed.sequence, NOTHING, fault=failed.fault)]

    def advance(self, outcome: Outcome) -> list[RequestUpdate]:
        """Apply the outcome of a step; return the updates of all requests in it."""
        now = self._clock()
        updates: list[RequestUpdate] = []
        for chunk in outcome.prefilled:
            running = self.seats.requests[chunk.sequence.number]
            running.owed.computed += chunk.length
            if isinstance(running, RunningDecision):
                running.computed += chunk.length
            if chunk.sequence.remaining:
                done = running.done(chunk.sequence.cells)
                work = paid(chunk.sequence, running)
                updates.append(RequestUpdate(running.key, chunk.sequence.number, "", 0, done, None, None, *work))
        # A guess can bring several tokens, and one may end the request.
        requests = self.seats.requests
        pushed = [
            self._push(found, token, now)
            for token in outcome.sampled
            if isinstance(found := requests.get(token.sequence.number), Generation)
        ]
        self._sampled += len(pushed)
        updates += pushed
        updates += [self._read(sequence, figures) for sequence, figures in outcome.read]
        updates += [self._end(sequence, NOTHING, fault="decode") for sequence in outcome.lost]
        updates += [self._end(sequence, NOTHING, fault="constraint") for sequence in outcome.refused]
        return updates

    def _let_guess(self, sequence: Sequence, running: Running, tokens: list[int]) -> None:
        if not self._abilities.speculates or isinstance(running, RunningDecision):
            return
        if not (running.sampler.bound or running.reproducible):
            sequence.lookup = PromptLookup(tokens, self._tokens.ends)

    def _hold(self, sequence: Sequence, running: Running) -> None:
        """Keep what comes after a decision's prefix from others: it makes place for the next tail."""
        if isinstance(running, RunningDecision):
            self.cache.hold(sequence, running.prefix_tokens)

    def _read(self, sequence: Sequence, figures: list[float]) -> RequestUpdate:
        """Report the labels at the end of a prompt, and go on to the next behind the same prefix."""
        decision = self.seats.requests[sequence.number]
        assert isinstance(decision, RunningDecision)
        done, work = decision.done(sequence.cells), paid(sequence, decision)
        decision.read()
        tail = decision.next_tail
        if tail is None:
            self.ended += 1
            ended = self._end(sequence, NOTHING)
            return structs.replace(ended, prompt_done=done, extra=reading_of(figures), cached=work[0], computed=work[1])
        sequence.prompt = sequence.images.put_into([*sequence.prompt[: decision.prefix_tokens], *tail])
        sequence.labels = decision.labels
        if sequence.grid is not None:
            sequence.grid = Grid(len(sequence.prompt))
        if self.cache.go_back(sequence, decision.prefix_tokens) < decision.prefix_tokens:
            # It began with cells of the same tail, so it never stood at the end of the prefix.
            self._hold(sequence, decision)
        # If it began with cells of its images and stands before them now, nobody has encoded them.
        self._images.request(_encode(decision), sequence)
        return RequestUpdate(decision.key, sequence.number, "", 0, done, reading_of(figures), None, *work)

    def _push(self, generation: Generation, sampled: SampledToken, now: float) -> RequestUpdate:
        sequence = sampled.sequence
        output = generation.push(sampled.token, now)
        if generation.finish_reason is not None or generation.defect is not None:
            self.ended += 1
            return self._end(sequence, output, sampled)
        extra = generation.extras(output, sampled.token, sampled.logprob)
        number, prompt_tokens = sequence.number, generation.prompt_tokens
        if not (sequence.cached or generation.owed.computed or generation.owed.cached):
            return RequestUpdate(generation.key, number, output.text, 1, prompt_tokens, extra)
        work = paid(sequence, generation)
        return RequestUpdate(generation.key, number, output.text, 1, prompt_tokens, extra, None, *work)

    def _end(
        self,
        sequence: Sequence,
        output: Released,
        sampled: SampledToken | None = None,
        *,
        fault: Fault | None = None,
    ) -> RequestUpdate:
        """End a request with its last output and token; its cells stay for others, unless the decode failed."""
        running = self.seats.leave(sequence)
        end = running.end(self._clock(), fault=fault)
        done = running.done(sequence.cells)
        if fault == "decode":
            self.cache.discard(sequence)
        else:
            if isinstance(running, RunningDecision) and sequence.cells > running.prefix_tokens:
                self.cache.go_back(sequence, running.prefix_tokens)
            self.cache.retire(sequence, running.history)
        running.close()
        count, token, logprob = (1, sampled.token, sampled.logprob) if sampled is not None else (0, None, None)
        extra = running.extras(output, token, logprob)
        return RequestUpdate(running.key, sequence.number, output.text, count, done, extra, end, *running.owed.paid())


def _refused(running: Running, now: float) -> RequestUpdate:
    """Return the end of a request without a sequence: the gate leased more than this engine declared."""
    running.close()
    end = running.end(now, fault="lease")
    return RequestUpdate(running.key, NO_SEQUENCE, "", 0, 0, None, end, *running.owed.paid())


def _encode(running: Running) -> Encode:
    return Encode(running.key, running.owner, running.images, running.names)


def _unstarted(run: Run, fault: Fault) -> RequestUpdate:
    end = End(None, None, Usage(len(run.prepared.tokens) // TOKEN_BYTES, 0, 0), 0.0, 0.0, fault)
    return RequestUpdate(run.key, NO_SEQUENCE, "", 0, 0, end=end)
