"""The table of endpoints, and the answer to a path without one."""

from car_http.dialects import (
    decisions,
    infill,
    llama_completion,
    openai_chat,
    openai_completions,
    openai_embeddings,
    rerank,
    systemone,
    transcriptions,
)
from car_http.dialects.anthropic import requests as messages
from car_http.dialects.job import NDJSON, SSE
from car_http.dialects.ollama import changes as ollama_changes
from car_http.dialects.ollama import requests as ollama_requests
from car_http.dialects.responses import requests as responses
from car_http.endpoints import anthropic, document, llama_server, models, ollama, openai, page, system
from car_http.endpoints import decisions as deciding
from car_http.endpoints.context import Endpoint, Handler, R, generation
from car_http.exchange import JSON

_BLOBS = "files are not sent here: `carctl models add PATH` adds a model of this machine"
_PUSH = "the door sends no models away"
_BATCHES = 'batches are not stored: send each request by itself, with "card": {"priority": "throughput"}'
_STORED = "answers are not stored: send the whole conversation with every request"
_FILES = "files are not stored: send their texts and images in the conversation"
_TEXT = "the models of this machine answer in text: POST /v1/chat/completions takes images and sounds"
_INSTEAD = {
    "/api/push": _PUSH,
    "/api/blobs": _BLOBS,
    **dict.fromkeys(("/messages/batches", "/batches"), _BATCHES),
    **dict.fromkeys(("/responses/resp_", "/chat/completions/chatcmpl-", "/conversations", "/threads"), _STORED),
    **dict.fromkeys(("/files", "/uploads", "/vector_stores"), _FILES),
    **dict.fromkeys(("/images", "/audio/speech", "/audio/translations", "/videos"), _TEXT),
}


def absence(path: str) -> str:
    """Return the message for a path that no endpoint has."""
    below = path.removeprefix("/v1")
    instead = next((why for prefix, why in _INSTEAD.items() if below.startswith(prefix)), None)
    return f"there is no such endpoint: {instead or 'GET /openapi.json lists them'}"


_EVENTS = (JSON, SSE)  # the content types of whole answers and of streams
_LINES = (JSON, NDJSON)


def _get(
    path: str, handler: Handler[None], *kinds: str, queries: tuple[str, ...] = (), local: bool = False
) -> Endpoint:
    return Endpoint("GET", path, handler, kinds=kinds or (JSON,), queries=queries, local=local)


def _post(path: str, body: type[R], handler: Handler[R], kinds: tuple[str, ...] = (JSON,)) -> Endpoint:
    return Endpoint("POST", path, handler, body, kinds)


_OPENAI = [
    _post("/chat/completions", openai_chat.ChatRequest, generation(openai_chat.read), _EVENTS),
    _post("/chat/completions/input_tokens", openai_chat.ChatRequest, llama_server.counting(openai_chat.read)),
    _post("/responses/input_tokens", responses.ResponsesRequest, llama_server.counting(responses.read)),
    _post("/responses", responses.ResponsesRequest, generation(responses.read), _EVENTS),
    _post("/embeddings", openai_embeddings.EmbeddingsRequest, openai.embeddings),
    Endpoint(
        "POST",
        "/audio/transcriptions",
        openai.transcriptions,
        transcriptions.TranscriptionRequest,
        (*_EVENTS, system.TEXT),
        file=transcriptions.FILE,
    ),
    _post("/decisions", decisions.DecisionsRequest, deciding.openai),
    _post("/systemone", systemone.SystemOneRequest, deciding.typesafe),
    _post("/rerank", rerank.RerankRequest, models.rank),
    _get("/models", openai.models),
    _get("/models/sse", models.watch, SSE),
    _post("/models/load", models.NamedModel, models.load, _EVENTS),
    _post("/models/unload", models.NamedModel, models.unload),
    _get("/models/{name:path}", openai.model),
]
_ANTHROPIC = [
    _post("/v1/messages", messages.MessagesRequest, generation(messages.read), _EVENTS),
    _post("/v1/messages/count_tokens", messages.CountTokensRequest, anthropic.count_tokens),
]
_OLLAMA = [
    _get("/api/version", ollama.version, local=True),
    _get("/api/tags", ollama.tags),
    _get("/api/ps", ollama.running),
    _post("/api/show", ollama_changes.Named, ollama.show),
    _post("/api/pull", ollama_changes.Streamed, ollama.pull, _LINES),
    _post("/api/create", ollama_changes.CreateRequest, ollama.create, _LINES),
    _post("/api/copy", ollama_changes.CopyRequest, ollama.copy),
    Endpoint("DELETE", "/api/delete", ollama.delete, ollama_changes.Named),
    _post("/api/chat", ollama_requests.ChatRequest, ollama.answering(ollama_requests.read_chat), _LINES),
    _post(
        "/api/generate",
        ollama_requests.GenerateRequest,
        ollama.answering(ollama_requests.read_generate),
        _LINES,
    ),
    _post("/api/embed", ollama_requests.EmbedRequest, ollama.embed),
    _post("/api/embeddings", ollama_requests.EmbedRequest, ollama.embeddings),
]
_LLAMA_SERVER = [
    _post("/completions", llama_completion.LlamaCompletionRequest, llama_server.completions, _EVENTS),
    _post("/completion", llama_completion.LlamaCompletionRequest, llama_server.completion, _EVENTS),
    _post("/embedding", llama_server.EmbeddingRequest, llama_server.embedding),
    _post("/infill", infill.InfillRequest, generation(infill.read), _EVENTS),
    _post("/tokenize", llama_server.TokenizeRequest, llama_server.tokenize),
    _post("/detokenize", llama_server.DetokenizeRequest, llama_server.detokenize),
    _post("/apply-template", openai_chat.ChatRequest, llama_server.apply_template),
    _get("/lora-adapters", llama_server.adapters, queries=("model",)),
    _get("/props", llama_server.props, queries=("model",)),
    _get("/slots", llama_server.slots, queries=("model", "fail_on_no_slot")),
    _get("/v1/health", system.health),
]
_LM_STUDIO = [
    _get("/api/v0/models", llama_server.lm_studio_models),
    _get("/api/v0/models/{name:path}", llama_server.lm_studio_model),
]
_SYSTEM = [
    _get("/health", system.health),
    _get("/metrics", system.metrics, system.TEXT, local=True),
    _get("/card/capacity", system.capacity, JSON, SSE, queries=("model",)),
]
_PAGE = [
    _get("/", page.root, system.TEXT, "text/html", local=True),
    _post("/card/session", page.SignIn, page.sign_in),
    Endpoint("DELETE", "/card/session", page.sign_out, local=True),
    _get("/card/events", page.events, SSE),
    _get("/card/usage", page.usage, queries=("by", "since")),
    *page.FILES,
]
# Without `/v1` llama-server has a form of its own, beside OpenAI's.
_COMPLETIONS = _post(
    "/completions", openai_completions.CompletionRequest, openai.completing(openai_completions.read), _EVENTS
)
# Clients are configured with and without `/v1` at the end of the URL.
_BELOW = [each.below("/v1") for each in (*_OPENAI, _COMPLETIONS)]
ENDPOINTS = [*_BELOW, *_OPENAI, *_ANTHROPIC, *_OLLAMA, *_LLAMA_SERVER, *_LM_STUDIO, *_SYSTEM, *_PAGE]
# The document describes itself too.
ENDPOINTS.append(_get("/openapi.json", document.serving(ENDPOINTS), local=True))
