"""The answer to `embed` and `rerank`, which comes in one piece."""

from msgspec import Struct

from car_daemon.engine import frames
from car_daemon.pending import Owner, Reply
from car_daemon.scheduler.request import Failure, Request
from car_protocol.embed import Embeddings, EmbedParams, Ranked, Ranking, RerankParams
from car_protocol.errors import RpcError


class TextsAnswer:
    """Texts that a client asked about and what the engine makes of them."""

    def __init__(self, request: Request, params: EmbedParams | RerankParams, owner: Owner, reply: Reply) -> None:
        self.request = request
        self.owner = owner
        self.sequence: int | None = None
        self._params = params
        self._reply = reply
        # Mutable state: the prepared form, and how it ended.
        self._prepared = frames.Prepared(request.key, b"", 0)
        self._end: frames.End | None = None
        self._vectors: list[list[float]] = []

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all texts."""
        return len(self._prepared.tokens) // 4

    @property
    def namespace(self) -> None:
        """Nothing of texts is kept."""
        return None

    @property
    def failure(self) -> Failure | None:
        """The error that the engine ended it with."""
        return Failure("internal_error", {}) if self._end is not None and self._end.fault is not None else None

    def as_prepare(self) -> frames.PrepareTexts:
        """Return the frame that has the texts cut into tokens."""
        params = self._params
        if isinstance(params, EmbedParams):
            return frames.PrepareTexts(self.request.key, params.input, None)
        return frames.PrepareTexts(self.request.key, params.documents, params.query)

    def prepared(self, message: frames.Prepared) -> None:
        """Keep the prepared form."""
        self._prepared = message

    def as_run(self) -> frames.RunTexts:
        """Return the frame that starts the request."""
        normalize = isinstance(self._params, EmbedParams) and self._params.normalize
        return frames.RunTexts(self.request.key, self._prepared.tokens, self._prepared.lengths, normalize)

    def take(self, row: frames.Row) -> None:
        """Take the vectors, which come with the end."""
        self._end = row.end
        if row.extra is not None:
            self._vectors = row.extra.vectors

    def queued(self, position: int, eta_ms: int | None) -> None:
        """Tell nothing: there is no progress to ask for."""

    def complete(self) -> None:
        """Send the terminal response."""
        assert self._end is not None
        self._reply.result(self._result(self._end))

    def fail(self, reason: str, data: dict[str, object]) -> None:
        """Send the terminal error."""
        self._reply.error(RpcError(reason, started=False, **data))

    def _result(self, end: frames.End) -> Struct:
        params, model = self._params, self.request.model
        if isinstance(params, EmbedParams):
            return Embeddings(self._vectors, model, end.usage)
        ranked = [Ranked(index, vector[0]) for index, vector in enumerate(self._vectors)]
        ranked.sort(key=lambda each: -each.score)
        return Ranking(ranked[: params.top_n], model, end.usage)
