"""Assemble one engine: the objects of its threads, on a loaded model."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NoReturn

from car_base.capacity.kept_file import CurveCheck
from car_base.host.cores import usable_cpus
from car_base.host.files import OpenedFiles
from car_base.ipc.frames import FromEngine, Heartbeat, Load, Ready, RunningJob, Warned
from car_base.ipc.inbox import Inbox
from car_base.ipc.types import DAMAGED_IMAGE
from car_engine.batching.planner import StepPlanner
from car_engine.batching.prefix_cache import PrefixCache
from car_engine.batching.reuse.index import Index
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.saved_cells import SavedCells
from car_engine.batching.sequences import SequenceTable
from car_engine.confinement import STACK_BYTES, limit_memory
from car_engine.images.ahead import AHEAD_BYTES, RowsAhead
from car_engine.images.awaited_images import AwaitedImages
from car_engine.images.encoder import Encode, Encoder
from car_engine.images.image_file import ImageError
from car_engine.images.piece_cache import CACHE_BYTES as PIECE_CACHE_BYTES
from car_engine.llama.embedder import Embedder
from car_engine.llama.library import finds_gpus, silence
from car_engine.llama.model import Adapters, ModelError
from car_engine.llama.sampler import LabelReadout, Logprobs
from car_engine.llama.sampler_chains import SamplerChains
from car_engine.llama.vision import Vision
from car_engine.loaded import Allocated, LoadedModel
from car_engine.placed_model import PlacedModel
from car_engine.prompt.constraints import OutputConstraints
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.conversation import Conversations
from car_engine.prompt.decision_families import CHAT
from car_engine.prompt.decisions import DecisionPreparer
from car_engine.prompt.job_progress import JobProgress
from car_engine.prompt.jobs import Jobs
from car_engine.prompt.preparer import Preparer, TokenizerThread
from car_engine.prompt.text_inputs import RerankPrompt, TextInputs
from car_engine.runner.generation import AnswerTokens
from car_engine.runner.loop import CheckedResults, Commands, EngineLoop
from car_engine.runner.parking import ParkingLot
from car_engine.runner.running import DecodingAbilities, RunningRequests
from car_engine.runner.stepper import SamplingTurns, Stepper
from car_engine.runner.texts import CannotEmbed, Embed, Texts
from car_engine.storage import fingerprint_of, open_store
from car_engine.stored.cell_store import CellStore

# Target time of a chunk without decoders; it bounds the delay of the next arrival or a cancel.
IDLE_TARGET_S = 0.750
_TEXT_TOKENS = 512
_FLOAT_BYTES = 4
# The longest sound as a file, as samples (twice while they are padded) and as a spectrum.
_AUDIO_BYTES = 128 * 1024 * 1024
_LONG_TEXT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Assembled:
    """An engine that is ready to serve."""

    loop: EngineLoop
    tokenizer: TokenizerThread
    encoder: Encoder | None
    store: CellStore | None
    ready: Ready
    curve_check: CurveCheck
    placed: PlacedModel[Allocated]

    def heartbeat(self, job: RunningJob | None, runs_since: float) -> Heartbeat:
        """Return the loop's progress and the running job; also compares the costs of steps with the measured curve.

        The age of a step counts from `runs_since` on.
        """
        self.curve_check.look()
        progress = self.loop.progress
        started = progress.step_started
        age = 0.0 if started is None else (time.perf_counter() - max(started, runs_since)) * 1000
        return Heartbeat(progress.step, age, self.loop.counters, job, self.placed.readings())


class EngineAssembly:
    """The objects of the tokenizer, encoder and loop threads.

    Raises ModelError. A first decode proves that the context works before the engine reports Ready.
    """

    def __init__(
        self,
        load: Load,
        jobs: Jobs,
        job: JobProgress,
        commands: Commands,
        send: Callable[[FromEngine], None],
        loaded: LoadedModel,
        files: socket.socket | None,
    ) -> None:
        self._load = load
        self._stored_files = files
        self._jobs = jobs
        self._job = job
        self._commands = commands
        self._send = send
        self._files = OpenedFiles(Path(load.path))
        self._loaded = loaded
        self._clock = time.perf_counter
        self._images: Inbox[Encode] = Inbox()

    def assembled(self) -> Assembled:
        """Load the model and build everything that serves it."""
        silence()
        loaded = self._loaded
        loop = self._loop()
        # Before the chat template is compiled, and after everything that needs memory by the model's size.
        limited = limit_memory(
            self._load, later=self._later_bytes, threads=max(loaded.size.threads, len(usable_cpus()))
        )
        tokenizer = TokenizerThread(
            self._preparer().answer,
            self._jobs,
            self._job,
            self._send,
            self._commands.put,
            self._commands.expected,
        )
        encoder = self._encoder(loaded.senses.projector) if loaded.senses.projector is not None else None
        curve_check = CurveCheck(
            lambda: loaded.costs.overrated, loaded.size.curve_file, lambda: self._send(Warned("curve.outdated", {}))
        )
        context, size = loaded.context, loaded.size
        can = ["generate"] if context.generates else []
        if context.generates and loaded.template is not None:
            counts = loaded.senses.counts
            can += ["chat", *(["images"] if counts.image else []), *(["audio"] if counts.audio else [])]
            can += loaded.template.abilities
        if context.generates and loaded.vocabulary.fill is not None:
            can.append("fill")
        if loaded.deciding.family is not None:
            can.append("decide")
        ready = Ready(
            sequences=context.sequences,
            policy=size.declared.policy,
            context_tokens=context.context_tokens,
            kv_bytes=size.sequence_bytes.of(context.context_tokens) * context.sequences,
            mask_bytes=size.sequence_bytes.mask(context.context_tokens),
            device=self._load.device,
            devices=loaded.placed.uses(context.sequences, context.context_tokens),
            host_weights=loaded.placed.host_weights,
            host_experts=len(loaded.placed.placement.host_experts) if loaded.placed.placement else 0,
            threads=size.threads,
            fingerprint=fingerprint_of(self._load),
            rates=size.curve.rates(context.sequences),
            prompt_share=size.curve.prompt_share(context.sequences),
            can=[*can, "rerank" if loaded.model.ranks else "embed"],
            inputs=size.inputs,
            sandbox=[] if limited is None else ["memory limits"],
            memory_limits=limited,
        )
        return Assembled(loop, tokenizer, encoder, self._store, ready, curve_check, loaded.placed)

    def _encoder(self, projector: Vision) -> Encoder:
        decode = self._loaded.senses.decode_image or _refuse_image
        return Encoder(
            lambda data: projector.encode(decode(data)), projector.encode_audio, self._images, self._commands.put
        )

    @cached_property
    def _samplers(self) -> SamplerChains:
        loaded = self._loaded
        return SamplerChains(loaded.vocabulary, loaded.constraints, loaded.context.context_tokens)

    # Text.

    def _preparer(self) -> Preparer:
        loaded, context, vocabulary = self._loaded, self._loaded.context, self._loaded.vocabulary
        limit = ContextLimit(context.context_tokens, vocabulary.longest_piece, loaded.size.longest)
        conversations = Conversations(
            loaded.template,
            limit,
            loaded.senses.counts,
            no_images=loaded.senses.no_images,
            no_template=loaded.no_template,
        )
        texts = TextInputs(
            tokenize=lambda text: vocabulary.tokenize(text, add_special=True, parse_special=False),
            pair=RerankPrompt(loaded.model.metadata.rerank_template, vocabulary).tokens,
            limit=ContextLimit(min(self._text_tokens, loaded.model.trained_context), vocabulary.longest_piece),
            ranks=loaded.model.ranks,
        )
        own_words = Conversations(loaded.decision_template, limit)
        asked = conversations if loaded.deciding.family is CHAT else own_words
        return Preparer(
            vocabulary,
            conversations,
            OutputConstraints(loaded.constraints.compile, vocabulary.token_of, loaded.constraints.warnings),
            texts,
            DecisionPreparer(loaded.deciding, list(loaded.labels), asked),
            self._samplers.warm,
            self._load.adapters,
            generates=context.generates,
        )

    @cached_property
    def _text_tokens(self) -> int:
        # Where a model also generates, a long text to embed would take gigabytes for unused logits.
        context = self._loaded.context
        return min(context.context_tokens, _TEXT_TOKENS if context.generates else _LONG_TEXT_TOKENS)

    @property
    def _later_bytes(self) -> int:
        """Bytes of later threads' stacks, and of buffers that requests allocate: cells, logits, embedder, images."""
        loaded, size = self._loaded, self._loaded.size
        rows = self._text_tokens + loaded.context.sequences
        logits = rows * loaded.vocabulary.size * _FLOAT_BYTES
        images, stacks = 0, STACK_BYTES
        if loaded.senses.projector is not None:
            # One more than has sequences: the first request of a user whose rows are encoded ahead.
            positions = (loaded.context.sequences + 1) * loaded.context.context_tokens
            stacks = 2 * STACK_BYTES
            images = PIECE_CACHE_BYTES + AHEAD_BYTES + positions * loaded.senses.projector.width * _FLOAT_BYTES
            images += _AUDIO_BYTES if loaded.senses.projector.takes_audio else 0
        later = self._load.saved_bytes + logits + size.sequence_bytes.of(self._text_tokens) + images + stacks
        if self._store is not None:
            # Cells that are written, cells that are read, states beside both, and the thread that does it.
            cells = size.sequence_bytes.of(loaded.context.context_tokens)
            later += 4 * (cells + size.sequence_bytes.state) + STACK_BYTES
        return later

    @cached_property
    def _store(self) -> CellStore | None:
        return open_store(self._load, self._loaded, self._commands.put, self._send, self._stored_files)

    def _open_embedder(self) -> Embed:
        loaded, threads = self._loaded, self._loaded.size.threads
        try:
            embedder = Embedder(loaded.model, loaded.vocabulary, threads=threads, context_tokens=self._text_tokens)
        except ModelError as error:
            raise CannotEmbed from error
        loaded.threads.add(embedder.set_threads)
        return embedder.in_batches

    # Steps.

    def _loop(self) -> EngineLoop:
        loaded, load, context = self._loaded, self._load, self._loaded.context
        table = SequenceTable(context.sequences, context.context_tokens)
        sampling = SamplingTurns(context, Logprobs(loaded.vocabulary).of, self._clock)
        planner = StepPlanner(
            loaded.costs,
            context.batch_tokens,
            step_target=load.step_target_ms / 1000,
            idle_target=IDLE_TARGET_S,
            memory=loaded.memory,
            batches_prompts=loaded.model.traits.shares_prefill,
        )
        adapters = Adapters(loaded.model, load.adapters)
        return EngineLoop(
            commands=self._commands,
            running=self._running(table, sampling),
            texts=Texts(self._open_embedder, self._clock),
            table=table,
            planner=planner,
            stepper=Stepper(
                context,
                loaded.costs,
                sampling,
                LabelReadout(list(loaded.labels.values())).of,
                lambda chosen: context.adapt(adapters.handles(chosen)),
                self._clock,
            ),
            threads=loaded.threads,
            send=CheckedResults(self._send, lambda: self._files.overwritten).send,
        )

    def _running(self, table: SequenceTable, sampling: SamplingTurns) -> RunningRequests:
        loaded, context = self._loaded, self._loaded.context
        index = Index(loaded.memory)
        saved = SavedCells(self._load.saved_bytes, index)
        size = loaded.size.sequence_bytes
        moves = MoveCosts(
            loaded.costs, context.context_tokens, size.per_token, self._clock, size.state, size.state_tokens
        )
        encode = self._images.put
        width = 0 if loaded.senses.projector is None else loaded.senses.projector.width
        return RunningRequests(
            build_sampler=self._samplers.build,
            tokens=AnswerTokens(
                loaded.vocabulary.ends,
                loaded.vocabulary.showing,
                partial(loaded.vocabulary.tokenize, add_special=False, parse_special=True),
            ),
            cache=PrefixCache(
                context,
                table,
                saved,
                index,
                moves,
                self._commands.expected,
                self._store,
            ),
            sampling=sampling,
            images=AwaitedImages(encode, RowsAhead(encode, self._send, width * _FLOAT_BYTES)),
            parking=ParkingLot(context, saved, moves),
            abilities=DecodingAbilities(
                speculates=self._load.speculative and loaded.memory.guesses > 0,
                repeats=self._load.packed and not finds_gpus(),
            ),
            clock=self._clock,
        )


def _refuse_image(_: bytes) -> NoReturn:
    """Stand in for the decoder if requests with images are refused before."""
    raise ImageError(DAMAGED_IMAGE)
