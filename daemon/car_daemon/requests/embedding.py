"""The pending answer to `embed` and `rerank`, which is sent in one piece."""

from math import isfinite

from car_base.ipc import frames
from car_base.ipc.codec import TOKEN_BYTES, vector_of
from car_daemon.requests.answer import CallOrigin, Responder, Siblings
from car_daemon.scheduler.request import EngineFailure, Prompt, Request
from car_protocol.errors import RpcError
from car_protocol.text import Embeddings, EmbedParams, Ranked, Ranking, RerankParams


class EmbeddingAnswer:
    """Texts of a request and their vectors or scores."""

    def __init__(
        self, request: Request, params: EmbedParams | RerankParams, origin: CallOrigin, responder: Responder
    ) -> None:
        self.request = request
        self.origin = origin
        self.prompt_tokens = 0  # of all texts
        self.sequence: int | None = None
        self.decisions, self.texts = 0, len(params.input if isinstance(params, EmbedParams) else params.documents)
        self.siblings = Siblings((request.key,))
        self._params = params
        self._responder = responder
        self._prepared = frames.Prepared(request.key, b"", 0)
        self._end: frames.End | None = None
        self._vectors: list[list[float]] = []

    def __repr__(self) -> str:
        return f"<EmbeddingAnswer to {self.request!r}>"

    @property
    def begun(self) -> bool:
        """Whether its vectors came."""
        return bool(self._vectors)

    def failure(self, context_tokens: int) -> EngineFailure | None:
        """Return the error that the engine ended it with."""
        return EngineFailure("internal_error", {}) if self._end is not None and self._end.fault is not None else None

    def as_prepare(self) -> frames.PrepareTexts:
        """Return the frame that cuts the texts into tokens."""
        params, owner, names = self._params, self.request.spec.client[0], self.origin.names
        if isinstance(params, EmbedParams):
            return frames.PrepareTexts(self.request.key, params.input, None, owner, params.truncate, names)
        return frames.PrepareTexts(self.request.key, params.documents, params.query, owner, names=names)

    def prepared(self, message: frames.Prepared, *, routed: bool) -> Prompt:
        """Keep the prepared form; embeddings use no cached cells, however they are `routed`."""
        self._prepared = message
        self.prompt_tokens = len(message.tokens) // TOKEN_BYTES
        return Prompt(self.prompt_tokens, message.max_tokens)

    def as_run(self) -> frames.RunTexts:
        """Return the frame that runs the request."""
        normalize = isinstance(self._params, EmbedParams) and self._params.normalize
        return frames.RunTexts(self._prepared, normalize)

    def add(self, update: frames.RequestUpdate) -> None:
        """Keep the vectors, which come with the end."""
        self._end = update.end
        if update.extra is not None:
            self._vectors = [vector_of(each) for each in update.extra.vectors]

    def queued(self, position: int, eta_ms: int | None) -> None:
        """Send nothing: these methods have no progress notifications."""

    def complete(self) -> None:
        """Send the terminal response; raises ValueError if the vectors are not of numbers, one for each text."""
        assert self._end is not None
        if len(self._vectors) != self.texts or not all(isfinite(sum(each)) for each in self._vectors):
            raise ValueError("the model computed no numbers")
        params, model, usage = self._params, self.request.model, self._end.usage
        if isinstance(params, EmbedParams):
            self._responder.result(Embeddings(self._vectors, model, usage))
            return
        ranked = [Ranked(index, vector[0]) for index, vector in enumerate(self._vectors)]
        ranked.sort(key=lambda each: -each.score)
        self._responder.result(Ranking(ranked[: params.top_n], model, usage))

    def fail(self, reason: str, data: dict[str, object]) -> None:
        """Send the terminal error."""
        self._responder.error(RpcError(reason, started=False, **data))
