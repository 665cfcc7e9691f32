"""Put one engine together: weights, capacity, context, threads' work; READY is earned by a first decode."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jinja2
import psutil

from car_daemon.cores import usable_cpus
from car_daemon.devices import gpu_number
from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.planner import StepPlanner
from car_daemon.engine.batching.table import SequenceTable
from car_daemon.engine.capacity import MAX_SEQUENCES, Declared, Need, SequenceBytes, declare
from car_daemon.engine.commands import Commands
from car_daemon.engine.curve import Curve, CurveCheck, CurveFile, identity_of
from car_daemon.engine.draws import Draws
from car_daemon.engine.encoding import Encode, Encoder
from car_daemon.engine.form import Forms
from car_daemon.engine.frames import FromEngine, Load, Ready, Warned
from car_daemon.engine.grammar.constraint import Constraints
from car_daemon.engine.inbox import Forgotten, Inbox
from car_daemon.engine.llama.adapters import Adapters
from car_daemon.engine.llama.context import LlamaContext
from car_daemon.engine.llama.embedder import Embedder
from car_daemon.engine.llama.library import library_build, silence
from car_daemon.engine.llama.likelihood import Likelihood
from car_daemon.engine.llama.model import LlamaModel, ModelError
from car_daemon.engine.llama.pairs import Pairs
from car_daemon.engine.llama.sampling import SamplerChains
from car_daemon.engine.llama.sequence_bytes import sequence_bytes
from car_daemon.engine.llama.template import ChatTemplate
from car_daemon.engine.llama.tokens import Vocabulary
from car_daemon.engine.llama.trial import Trial
from car_daemon.engine.llama.vision import Vision
from car_daemon.engine.loop import EngineLoop
from car_daemon.engine.parking import ParkingLot
from car_daemon.engine.prefix_cache import PrefixCache
from car_daemon.engine.preparer import Job, Preparer
from car_daemon.engine.saved_cells import SavedCells
from car_daemon.engine.stepper import Stepper
from car_daemon.engine.text_inputs import TextInputs
from car_daemon.engine.texts import CannotEmbed, Texts
from car_daemon.engine.threads import ThreadCount
from car_daemon.memory import read_memory

_TINY_WEIGHTS = 32 * 1024 * 1024
# With nobody decoding a chunk may take this long; it bounds how long the next arrival or a cancel waits.
IDLE_TARGET_S = 0.750
# The trial takes about this long, once a model, device and number of threads, and this share of the free memory.
_TRIAL_S = 1.0
_TRIAL_SHARE = 0.25
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


def assemble(
    load: Load,
    jobs: Inbox[Job],
    forgotten: Forgotten,
    commands: Commands,
    send: Callable[[FromEngine], None],
    progress: Callable[[float], None],
) -> Assembled:
    """Load the model and build what serves it; raises ModelError."""
    silence()
    gpu = gpu_number(load.device)
    model = LlamaModel(load.path, gpu_layers=load.gpu_layers, gpu=gpu, packed=load.packed, progress=progress)
    vocabulary = Vocabulary(model)
    threads = load.threads or default_threads(model.size_bytes)
    free_bytes = _free_bytes(load)
    identity = identity_of(load.path, device=load.device, threads=threads, packed=load.packed, library=library_build())
    curve_file = CurveFile(Path(load.curves) if load.curves else None, identity)
    need = sequence_bytes(model, threads)
    curve = curve_file.remembered(lambda: _measured(model, need, threads, free_bytes))
    declared = _declare(load, model, need, curve, free_bytes, send)
    context = LlamaContext(model, sequences=declared.sequences, context_tokens=declared.context_tokens, threads=threads)
    cuts_tails = context.can_cut_tails()
    template = _template(load, model, vocabulary, send)
    constraints = Constraints(vocabulary.pieces, vocabulary.ends, vocabulary.control)
    samplers = SamplerChains(vocabulary, constraints, context.context_tokens)
    adapters = Adapters(model, load.adapters)
    # Where a model also generates, a long text to embed would take gigabytes for logits that nobody reads.
    text_tokens = min(context.context_tokens, _TEXT_TOKENS if context.generates else _LONG_TEXT_TOKENS)
    costs = StepCosts(curve.decode, curve.prefill, threads)
    count = ThreadCount(costs)
    count.add(context.compute_with)

    def open_embedder() -> Embedder:
        try:
            embedder = Embedder(model, vocabulary, threads=threads, context_tokens=text_tokens)
        except ModelError as error:
            raise CannotEmbed from error
        count.add(embedder.compute_with)
        return embedder

    vision = Vision(load.projector, model, threads=threads, gpu=load.gpu_layers != 0) if load.projector else None
    images: Inbox[Encode] = Inbox()
    loop = _loop(
        load,
        context,
        vocabulary,
        samplers,
        adapters,
        open_embedder,
        images,
        costs,
        count.share,
        commands,
        send,
        cuts_tails=cuts_tails,
        shares_prefill=model.traits.shares_prefill,
    )
    forms = Forms(constraints.compile, vocabulary.token_of)
    texts = TextInputs(
        tokenize=lambda text: vocabulary.tokenize(text, add_special=True, parse_special=False),
        pair=Pairs(model, vocabulary).tokens,
        max_tokens=min(text_tokens, model.trained_context),
        longest_piece=vocabulary.longest_piece,
        ranks=model.ranks,
    )
    preparer = Preparer(
        vocabulary,
        template,
        forms,
        samplers.warm,
        load.adapters,
        texts,
        vision.count if vision is not None else None,
        context.context_tokens,
        generates=context.generates,
        inbox=jobs,
        forgotten=forgotten,
        send=send,
    )
    kv_bytes = need.of(context.context_tokens)
    ready = Ready(
        sequences=context.sequences,
        policy=declared.policy,
        context_tokens=context.context_tokens,
        kv_bytes=kv_bytes * context.sequences,
        device=load.device,
        threads=threads,
        can=_abilities(model, context, template, vision),
        inputs={
            "free_bytes": free_bytes,
            "kv_bytes_per_sequence": kv_bytes,
            **{f"tokens_per_s_{rows}": round(rows / seconds, 1) for rows, seconds in sorted(curve.decode.items())},
        },
    )
    encoder = Encoder(vision, images, commands.put) if vision is not None else None
    curve_check = CurveCheck(costs, curve_file, lambda: send(Warned("curve.outdated", {})))
    return Assembled(loop, preparer, encoder, ready, curve_check)


def _abilities(
    model: LlamaModel, context: LlamaContext, template: ChatTemplate | None, vision: Vision | None
) -> list[str]:
    generation = ["generate"] if context.generates else []
    chat = ["chat"] if context.generates and template is not None else []
    images = ["images"] if chat and vision is not None else []
    return [*generation, *chat, *images, "rerank" if model.ranks else "embed"]


def _free_bytes(load: Load) -> int:
    """Return the memory that is free for this engine."""
    free = max(0, read_memory().available - load.reserve_bytes)
    return free if load.budget_bytes is None else min(free, load.budget_bytes)


def _measured(model: LlamaModel, need: SequenceBytes, threads: int, free_bytes: int) -> Curve:
    """Return what steps of the model cost now."""
    memory = int(free_bytes * _TRIAL_SHARE)
    return Trial(model, need, threads=threads, memory_bytes=memory, clock=time.perf_counter).measure(_TRIAL_S)


def _declare(
    load: Load,
    model: LlamaModel,
    need: SequenceBytes,
    curve: Curve,
    free_bytes: int,
    send: Callable[[FromEngine], None],
) -> Declared:
    declared = declare(
        Need(
            sequence_bytes=need,
            free_bytes=free_bytes,
            total_bytes=read_memory().total,
            trained_context=model.trained_context,
            policy=load.policy,
            curve=curve,
            max_itl=load.max_itl_ms / 1000,
            context_tokens=load.context_tokens,
            sequences=load.sequences,
            most_sequences=1 if model.traits.alone else MAX_SEQUENCES,
            most_tokens=model.most_tokens,
        )
    )
    if load.context_tokens is not None and declared.context_tokens < load.context_tokens:
        send(Warned("context.lowered", {"asked": load.context_tokens, "declared": declared.context_tokens}))
    if declared.asked is not None:
        send(Warned("capacity.lowered", {"asked": declared.asked, "declared": declared.sequences}))
    return declared


def _loop(
    load: Load,
    context: LlamaContext,
    vocabulary: Vocabulary,
    samplers: SamplerChains,
    adapters: Adapters,
    open_embedder: Callable[[], Embedder],
    images: Inbox[Encode],
    costs: StepCosts,
    share: Callable[[int], None],
    commands: Commands,
    send: Callable[[FromEngine], None],
    *,
    cuts_tails: bool,
    shares_prefill: bool,
) -> EngineLoop:
    clock = time.perf_counter
    table = SequenceTable(context.sequences, context.context_tokens)
    saved = SavedCells(load.saved_bytes, context.needs_from)
    return EngineLoop(
        samplers=samplers,
        vocabulary=vocabulary,
        table=table,
        adapt=lambda chosen: context.adapt(adapters.handles(chosen)),
        cache=PrefixCache(context, table, saved, reuses=cuts_tails),
        planner=StepPlanner(
            costs,
            context.batch_tokens,
            step_target=load.step_target_ms / 1000,
            idle_target=IDLE_TARGET_S,
            pads=cuts_tails,
            shares=shares_prefill,
        ),
        lot=ParkingLot(context, saved),
        texts=Texts(open_embedder, clock),
        encode=images.put,
        speculates=load.speculative and cuts_tails,
        share=share,
        make_stepper=lambda sampler_of: Stepper(
            context, costs, Draws(context, sampler_of, Likelihood(vocabulary).of, clock), context.context_tokens, clock
        ),
        commands=commands,
        send=send,
        clock=clock,
    )


def _template(
    load: Load, model: LlamaModel, vocabulary: Vocabulary, send: Callable[[FromEngine], None]
) -> ChatTemplate | None:
    if load.chat_template is not None:
        return _given_template(Path(load.chat_template), vocabulary)
    if model.chat_template is None:
        return None
    try:
        return ChatTemplate(model.chat_template, vocabulary)
    except jinja2.TemplateError:
        send(Warned("model.template_invalid", {}))
        return None


def _given_template(path: Path, vocabulary: Vocabulary) -> ChatTemplate:
    """Return the template that is to be used in place of the model's own; raises ModelError."""
    try:
        return ChatTemplate(path.read_text(encoding="utf-8"), vocabulary)
    except (OSError, UnicodeDecodeError):
        raise ModelError("the chat template cannot be read") from None
    except jinja2.TemplateError:
        raise ModelError("the chat template is no template") from None


def default_threads(weights_bytes: int) -> int:
    """Return the physical cores that this process may use: hyperthreads slow llama.cpp down.

    A tiny model gets one thread: its threads would wait for each other longer than they work, and with another
    program on the cores by the hundredfold.
    """
    if weights_bytes < _TINY_WEIGHTS:
        return 1
    usable = len(usable_cpus())
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))
