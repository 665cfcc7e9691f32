"""The senses of a model beside text: its projector, the decoder of image files, the counts of positions."""

from collections.abc import Callable
from functools import cached_property

from car_base.ipc.frames import FromEngine, Load, Warned
from car_engine.llama.model import LlamaModel
from car_engine.llama.vision import Pixels, Vision
from car_engine.prompt.image_prompt import Counts


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
        """The projector of images and sounds; None without one that serves any of them."""
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
