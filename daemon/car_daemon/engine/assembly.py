"""Put one engine together: weights, capacity, context, threads' work; READY is earned by a first decode."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import jinja2
import psutil

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.planner import StepPlanner
from car_daemon.engine.batching.table import SequenceTable
from car_daemon.engine.capacity import Declared, Need, declare
from car_daemon.engine.frames import FromEngine, Load, Ready, Warned
from car_daemon.engine.inbox import Inbox
from car_daemon.engine.llama.context import LlamaContext
from car_daemon.engine.llama.model import LlamaModel, silence
from car_daemon.engine.llama.sampling import SamplerChains
from car_daemon.engine.llama.template import ChatTemplate
from car_daemon.engine.llama.tokens import Vocabulary
from car_daemon.engine.loop import Command, EngineLoop
from car_daemon.engine.preparer import Job, Preparer
from car_daemon.engine.stepper import Stepper

_TINY_WEIGHTS = 32 * 1024 * 1024
_STEP_TARGET_S = 0.050
# With nobody decoding a chunk may take this long; it bounds how long the next arrival or a cancel waits.
_IDLE_TARGET_S = 0.200


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that is ready to serve."""

    loop: EngineLoop
    preparer: Preparer
    ready: Ready


def assemble(
    load: Load,
    jobs: Inbox[Job | None],
    commands: Inbox[Command],
    send: Callable[[FromEngine], None],
    progress: Callable[[float], None],
) -> Engine:
    """Load the model and build what serves it; raises ModelError."""
    silence()
    model = LlamaModel(load.path, gpu_layers=load.gpu_layers, progress=progress)
    vocabulary = Vocabulary(model)
    declared = _declare(load, model, send)
    context = LlamaContext(
        model,
        sequences=declared.sequences,
        context_tokens=declared.context_tokens,
        threads=load.threads or default_threads(model.size_bytes),
    )
    pads = context.can_cut_tails()
    template = _template(model, vocabulary, send)
    loop = _loop(context, vocabulary, commands, send, pads=pads)
    render = template.render if template else None
    preparer = Preparer(vocabulary, render, context.context_tokens, jobs, send)
    ready = Ready(
        sequences=context.sequences,
        policy=declared.policy,
        context_tokens=context.context_tokens,
        kv_bytes=model.kv_bytes(context.context_tokens) * context.sequences,
        device="cpu" if load.gpu_layers == 0 else "gpu",
        can=["generate", "chat"] if template else ["generate"],
        inputs={"free_bytes": _free_bytes(), "kv_bytes_per_sequence": model.kv_bytes(context.context_tokens)},
    )
    return Engine(loop, preparer, ready)


def _declare(load: Load, model: LlamaModel, send: Callable[[FromEngine], None]) -> Declared:
    declared = declare(
        Need(
            kv_bytes_per_token=model.kv_bytes(1),
            free_bytes=_free_bytes(),
            trained_context=model.trained_context,
            context_tokens=load.context_tokens,
            sequences=load.sequences,
            policy=load.policy,
        )
    )
    if declared.asked is not None:
        send(Warned("capacity.lowered", {"asked": declared.asked, "declared": declared.sequences}))
    return declared


def _loop(
    context: LlamaContext,
    vocabulary: Vocabulary,
    commands: Inbox[Command],
    send: Callable[[FromEngine], None],
    *,
    pads: bool,
) -> EngineLoop:
    costs = StepCosts()
    clock = time.perf_counter
    return EngineLoop(
        context=context,
        samplers=SamplerChains(vocabulary, context.context_tokens),
        vocabulary=vocabulary,
        table=SequenceTable(context.sequences, context.context_tokens),
        planner=StepPlanner(
            costs, context.batch_tokens, step_target=_STEP_TARGET_S, idle_target=_IDLE_TARGET_S, pads=pads
        ),
        make_stepper=lambda sampler_of: Stepper(context, costs, sampler_of, context.context_tokens, clock),
        inbox=commands,
        send=send,
        clock=clock,
    )


def _template(model: LlamaModel, vocabulary: Vocabulary, send: Callable[[FromEngine], None]) -> ChatTemplate | None:
    if model.chat_template is None:
        return None
    try:
        return ChatTemplate(model.chat_template, vocabulary)
    except jinja2.TemplateError:
        send(Warned("model.template_invalid", {}))
        return None


def default_threads(weights_bytes: int) -> int:
    """Return the physical cores that this process may use: hyperthreads slow llama.cpp down.

    A tiny model gets one thread: its threads would wait for each other longer than they work, and with another
    program on the cores by the hundredfold.
    """
    if weights_bytes < _TINY_WEIGHTS:
        return 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def _free_bytes() -> int:
    return int(psutil.virtual_memory().available)
