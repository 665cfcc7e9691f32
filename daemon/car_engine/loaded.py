"""The parts of one engine that its threads share: weights, capacity, context, vocabulary, projector."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from car_base.capacity.kept_file import DevicePartsFile, identity_of
from car_base.capacity.placement import Placement
from car_base.ipc.frames import FromEngine, Load, Warned
from car_base.ipc.ranges import line
from car_engine.backend import Backend
from car_engine.batching.costs import StepCosts
from car_engine.batching.reuse.index import Memory
from car_engine.child.children import Children
from car_engine.grammar.constraint import Constraints
from car_engine.llama.context import LlamaContext
from car_engine.llama.library import library_build
from car_engine.llama.model import LlamaModel, ModelError
from car_engine.llama.tokens import Vocabulary
from car_engine.llama.vision import Pixels, Vision
from car_engine.placed_model import PlacedModel
from car_engine.prompt.decision_families import labels_of
from car_engine.prompt.decisions import DecisionWay, way_of
from car_engine.prompt.image_prompt import Counts
from car_engine.prompt.template import ChatTemplate, InvalidTemplate
from car_engine.runner.loop import ThreadCount
from car_engine.sizing import DeclaredSize, size_of


class Senses:
    """Images and sounds, as far as the model's projector and the installed packages take them; raises ModelError."""

    def __init__(self, load: Load, model: LlamaModel, send: Callable[[FromEngine], None], *, threads: int) -> None:
        self._load = load
        self._model = model
        self._send = send
        self._threads = threads
        self.no_images: str | None = None  # why a model with a projector of images takes none

    @cached_property
    def projector(self) -> Vision | None:
        """The projector of images and sounds; None without a projector that serves any of these."""
        load = self._load
        if not load.projector:
            return None
        projector = Vision(load.projector, self._model, threads=self._threads, gpu=load.gpu_layers != 0)
        if projector.takes_images and self.decode_image is None:
            self.no_images = "decoding images needs Pillow: install card-daemon[images]"
            self._send(Warned("images.pillow_missing", {}))
            if not projector.takes_audio:
                projector.close()
                return None
        return projector

    @cached_property
    def decode_image(self) -> Callable[[bytes], Pixels] | None:
        """The decoder of image files; None without Pillow."""
        try:
            # Pillow is an optional dependency that only models with a projector of images need.
            from car_engine.images.decoder import decode
        except ImportError:
            return None
        return decode

    @cached_property
    def counts(self) -> Counts:
        """The counts of positions of images and sounds, as far as the model takes them."""
        projector = self.projector
        if projector is None:
            return Counts()
        images = projector.takes_images and self.decode_image is not None
        return Counts(projector.count if images else None, projector.count_audio if projector.takes_audio else None)


class Allocated(NamedTuple):
    """The memory of a model: its weights, and the context of as many sequences as there is room for."""

    model: LlamaModel
    size: DeclaredSize
    context: LlamaContext


class LoadedModel:
    """One model, each part loaded when it is first needed; raises ModelError."""

    def __init__(
        self,
        load: Load,
        send: Callable[[FromEngine], None],
        progress: Callable[[float], None],
        backend: Backend,
        children: Children,
    ) -> None:
        self._load = load
        self._send = send
        self._progress = progress
        self._backend = backend
        self._children = children
        self.no_template: str | None = None  # why the model's template cannot be used

    @cached_property
    def placed(self) -> PlacedModel[Allocated]:
        """The plan of the model on devices."""
        load = self._load
        identity = identity_of(
            load.path, device=load.device, threads=0, packed=load.packed, library=library_build(), kv_type=load.kv_type
        )
        kept = DevicePartsFile(Path(load.curves) if load.curves else None, identity)
        return PlacedModel(
            load, self._allocate, self._send, kept=kept.read(), keep=kept.keep, read=self._backend.read_devices
        )

    @cached_property
    def _allocated(self) -> Allocated:
        return self.placed.load()

    def _allocate(self, placement: Placement | None) -> Allocated:
        load, model = self._load, self._backend.open_model(self._load, self._progress, placement)
        try:
            size = size_of(load, model, self.placed, self._send)
            sequences, context_tokens = size.declared.sequences, size.declared.context_tokens
            rollback = size.sequence_bytes.rollback(context_tokens) if load.speculative else 0
            context = self._backend.open_context(model, sequences, context_tokens, size.threads, rollback)
        except ModelError:
            # A second try needs the memory.
            model.close()
            raise
        return Allocated(model, size, context)

    @property
    def model(self) -> LlamaModel:
        """The weights."""
        return self._allocated.model

    @property
    def size(self) -> DeclaredSize:
        """The declared capacity, which warned if configured figures are too high."""
        return self._allocated.size

    @property
    def context(self) -> LlamaContext:
        """The context of all generations."""
        return self._allocated.context

    @cached_property
    def memory(self) -> Memory:
        """The memory of its sequences; a first decode proves that the context works."""
        self.context.try_out()
        return self.context.memory

    @cached_property
    def costs(self) -> StepCosts:
        """The costs of steps, which start with the measured costs."""
        return StepCosts(self.size.curve.decode, self.size.curve.prefill, self.size.threads)

    @cached_property
    def threads(self) -> ThreadCount:
        """The number of threads of every context of this model."""
        count = ThreadCount(self.costs)
        count.add(self.context.set_threads)
        return count

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the model."""
        return Vocabulary(self.model)

    @cached_property
    def constraints(self) -> Constraints:
        """Grammars over the vocabulary."""
        return Constraints(self.vocabulary.pieces, self.vocabulary.ends, self.vocabulary.control)

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The configured chat template, else the model's own; None, with a warning, if that is not valid."""
        path = self._load.chat_template
        try:
            source = self.model.metadata.chat_template if path is None else Path(path).read_text(encoding="utf-8")
            if source is None:
                return None
            style, tags = self._load.tool_style, self._load.thinking_tags
            return ChatTemplate(source, self.vocabulary, self._children.ask, style, tags)
        except (OSError, UnicodeDecodeError):
            raise ModelError("the chat template cannot be read") from None
        except InvalidTemplate as error:
            self.no_template = f"the chat template {error}"
            if path is not None:
                raise ModelError(self.no_template) from None
            self._send(Warned("model.template_invalid", {"why": line(str(error))}))
            return None

    @cached_property
    def decision_template(self) -> ChatTemplate | None:
        """The model's own template for questions about a state; None, with a warning, if it is not valid."""
        source = self.model.metadata.decision_template
        if source is None:
            return None
        try:
            return ChatTemplate(source, self.vocabulary, self._children.ask, name="decision", begins=False)
        except InvalidTemplate as error:
            self._send(Warned("model.template_invalid", {"why": line(str(error))}))
            return None

    @cached_property
    def deciding(self) -> DecisionWay:
        """How the model decides."""
        generates = self.context.generates
        return way_of(
            self.model.metadata.own,
            own_words=generates and self.decision_template is not None,
            chats=generates and self.template is not None,
        )

    @cached_property
    def labels(self) -> dict[str, list[int]]:
        """The labels of options, each with its tokens."""
        family = self.deciding.family
        return {} if family is None else labels_of(family, self.vocabulary.pieces)

    @cached_property
    def senses(self) -> Senses:
        """The projector of images and sounds, if there is one."""
        return Senses(self._load, self.model, self._send, threads=self.size.threads)
