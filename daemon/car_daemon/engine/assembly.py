"""Put one engine together: weights, capacity, context, threads' work; READY is earned by a first decode."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jinja2

from car_daemon.devices import gpu_number
from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.planner import StepPlanner
from car_daemon.engine.batching.sequence import Sequence
from car_daemon.engine.batching.table import SequenceTable
from car_daemon.engine.commands import Commands
from car_daemon.engine.curve import CurveCheck
from car_daemon.engine.draws import Draws
from car_daemon.engine.encoding import Encode, Encoder
from car_daemon.engine.form import Forms
from car_daemon.engine.frames import FromEngine, Load, Ready, Warned
from car_daemon.engine.generation import BoundSampler
from car_daemon.engine.grammar.constraint import Constraints
from car_daemon.engine.inbox import Forgotten, Inbox
from car_daemon.engine.llama.adapters import Adapters
from car_daemon.engine.llama.context import LlamaContext
from car_daemon.engine.llama.embedder import Embedder
from car_daemon.engine.llama.library import silence
from car_daemon.engine.llama.likelihood import Likelihood
from car_daemon.engine.llama.model import LlamaModel, ModelError
from car_daemon.engine.llama.pairs import Pairs
from car_daemon.engine.llama.sampling import SamplerChains
from car_daemon.engine.llama.template import ChatTemplate
from car_daemon.engine.llama.tokens import Vocabulary
from car_daemon.engine.llama.vision import Vision
from car_daemon.engine.loop import EngineLoop
from car_daemon.engine.parking import ParkingLot
from car_daemon.engine.prefix_cache import PrefixCache
from car_daemon.engine.preparer import Job, Preparer
from car_daemon.engine.saved_cells import SavedCells
from car_daemon.engine.sizing import Size, size_of
from car_daemon.engine.stepper import Stepper
from car_daemon.engine.text_inputs import TextInputs
from car_daemon.engine.texts import CannotEmbed, Texts
from car_daemon.engine.threads import ThreadCount

# With nobody decoding a chunk may take this long; it bounds how long the next arrival or a cancel waits.
IDLE_TARGET_S = 0.750
_TEXT_TOKENS = 512
_LONG_TEXT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Assembled:
    """An engine that is ready to serve."""

    loop: EngineLoop
    preparer: Preparer
    encoder: Encoder | None
    ready: Ready
    curve_check: CurveCheck


class Assembly:
    """The parts of one engine, each made when the first other part needs it; making them raises ModelError."""

    def __init__(
        self,
        load: Load,
        jobs: Inbox[Job],
        forgotten: Forgotten,
        commands: Commands,
        send: Callable[[FromEngine], None],
        progress: Callable[[float], None],
    ) -> None:
        self._load = load
        self._jobs = jobs
        self._forgotten = forgotten
        self._commands = commands
        self._send = send
        self._progress = progress
        self._clock = time.perf_counter
        self._images: Inbox[Encode] = Inbox()

    def assembled(self) -> Assembled:
        """Load the model and build what serves it."""
        silence()
        loop, preparer = self._loop(), self._preparer()
        encoder = None if self._vision is None else Encoder(self._vision, self._images, self._commands.put)
        return Assembled(loop, preparer, encoder, self._ready(), self._curve_check())

    # The model and what was decided about it.

    @cached_property
    def _model(self) -> LlamaModel:
        load = self._load
        return LlamaModel(
            load.path,
            gpu_layers=load.gpu_layers,
            gpu=gpu_number(load.device),
            packed=load.packed,
            progress=self._progress,
        )

    @cached_property
    def _size(self) -> Size:
        return size_of(self._load, self._model, self._send)

    @cached_property
    def _context(self) -> LlamaContext:
        size = self._size
        sequences, context_tokens = size.declared.sequences, size.declared.context_tokens
        return LlamaContext(self._model, sequences=sequences, context_tokens=context_tokens, threads=size.threads)

    @cached_property
    def _cuts_tails(self) -> bool:
        return self._context.can_cut_tails()

    @cached_property
    def _costs(self) -> StepCosts:
        return StepCosts(self._size.curve.decode, self._size.curve.prefill, self._size.threads)

    @cached_property
    def _threads(self) -> ThreadCount:
        count = ThreadCount(self._costs)
        count.add(self._context.compute_with)
        return count

    # Text.

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._model)

    @cached_property
    def _constraints(self) -> Constraints:
        return Constraints(self._vocabulary.pieces, self._vocabulary.ends, self._vocabulary.control)

    @cached_property
    def _samplers(self) -> SamplerChains:
        return SamplerChains(self._vocabulary, self._constraints, self._context.context_tokens)

    @cached_property
    def _template(self) -> ChatTemplate | None:
        if self._load.chat_template is not None:
            return _given_template(Path(self._load.chat_template), self._vocabulary)
        if self._model.chat_template is None:
            return None
        try:
            return ChatTemplate(self._model.chat_template, self._vocabulary)
        except jinja2.TemplateError:
            self._send(Warned("model.template_invalid", {}))
            return None

    @cached_property
    def _text_tokens(self) -> int:
        # Where a model also generates, a long text to embed would take gigabytes for logits that nobody reads.
        most = _TEXT_TOKENS if self._context.generates else _LONG_TEXT_TOKENS
        return min(self._context.context_tokens, most)

    def _text_inputs(self) -> TextInputs:
        vocabulary = self._vocabulary
        return TextInputs(
            tokenize=lambda text: vocabulary.tokenize(text, add_special=True, parse_special=False),
            pair=Pairs(self._model, vocabulary).tokens,
            max_tokens=min(self._text_tokens, self._model.trained_context),
            longest_piece=vocabulary.longest_piece,
            ranks=self._model.ranks,
        )

    def _open_embedder(self) -> Embedder:
        threads = self._size.threads
        try:
            embedder = Embedder(self._model, self._vocabulary, threads=threads, context_tokens=self._text_tokens)
        except ModelError as error:
            raise CannotEmbed from error
        self._threads.add(embedder.compute_with)
        return embedder

    @cached_property
    def _vision(self) -> Vision | None:
        load = self._load
        if not load.projector:
            return None
        return Vision(load.projector, self._model, threads=self._size.threads, gpu=load.gpu_layers != 0)

    def _preparer(self) -> Preparer:
        return Preparer(
            self._vocabulary,
            self._template,
            Forms(self._constraints.compile, self._vocabulary.token_of),
            self._samplers.warm,
            self._load.adapters,
            self._text_inputs(),
            self._vision.count if self._vision is not None else None,
            self._context.context_tokens,
            generates=self._context.generates,
            inbox=self._jobs,
            forgotten=self._forgotten,
            send=self._send,
        )

    # Steps.

    def _loop(self) -> EngineLoop:
        context = self._context
        table = SequenceTable(context.sequences, context.context_tokens)
        saved = SavedCells(self._load.saved_bytes, context.needs_from)
        adapters = Adapters(self._model, self._load.adapters)
        return EngineLoop(
            samplers=self._samplers,
            vocabulary=self._vocabulary,
            table=table,
            adapt=lambda chosen: context.adapt(adapters.handles(chosen)),
            cache=PrefixCache(context, table, saved, reuses=self._cuts_tails),
            planner=self._planner(),
            lot=ParkingLot(context, saved),
            texts=Texts(self._open_embedder, self._clock),
            encode=self._images.put,
            speculates=self._load.speculative and self._cuts_tails,
            share=self._threads.share,
            make_stepper=self._stepper,
            commands=self._commands,
            send=self._send,
            clock=self._clock,
        )

    def _planner(self) -> StepPlanner:
        return StepPlanner(
            self._costs,
            self._context.batch_tokens,
            step_target=self._load.step_target_ms / 1000,
            idle_target=IDLE_TARGET_S,
            pads=self._cuts_tails,
            shares=self._model.traits.shares_prefill,
        )

    def _stepper(self, sampler_of: Callable[[Sequence], BoundSampler]) -> Stepper:
        draws = Draws(self._context, sampler_of, Likelihood(self._vocabulary).of, self._clock)
        return Stepper(self._context, self._costs, draws, self._context.context_tokens, self._clock)

    # What the daemon hears.

    def _ready(self) -> Ready:
        context, size = self._context, self._size
        return Ready(
            sequences=context.sequences,
            policy=size.declared.policy,
            context_tokens=context.context_tokens,
            kv_bytes=size.sequence_bytes.of(context.context_tokens) * context.sequences,
            device=self._load.device,
            threads=size.threads,
            can=self._abilities(),
            inputs=size.inputs,
        )

    def _abilities(self) -> list[str]:
        generation = ["generate"] if self._context.generates else []
        chat = ["chat"] if self._context.generates and self._template is not None else []
        images = ["images"] if chat and self._vision is not None else []
        return [*generation, *chat, *images, "rerank" if self._model.ranks else "embed"]

    def _curve_check(self) -> CurveCheck:
        return CurveCheck(self._costs, self._size.curve_file, lambda: self._send(Warned("curve.outdated", {})))


def _given_template(path: Path, vocabulary: Vocabulary) -> ChatTemplate:
    """Return the template that is to be used in place of the model's own; raises ModelError."""
    try:
        return ChatTemplate(path.read_text(encoding="utf-8"), vocabulary)
    except (OSError, UnicodeDecodeError):
        raise ModelError("the chat template cannot be read") from None
    except jinja2.TemplateError:
        raise ModelError("the chat template is no template") from None
