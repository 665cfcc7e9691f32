"""The table of endpoints."""

from car_http.dialects import infill, openai_chat, openai_completions, openai_responses
from car_http.dialects.anthropic import requests as messages
from car_http.dialects.ollama import requests as ollama_requests
from car_http.endpoints import anthropic, models, ollama, openai, system
from car_http.endpoints.context import Endpoint, generation

_OPENAI = [
    Endpoint("POST", "/chat/completions", generation(openai_chat.read), openai_chat.MEMBERS),
    Endpoint("POST", "/completions", generation(openai_completions.read), openai_chat.MEMBERS),
    Endpoint("POST", "/responses", generation(openai_responses.read), openai_responses.MEMBERS),
    Endpoint("POST", "/embeddings", openai.embeddings),
    Endpoint("POST", "/rerank", models.rank),
    Endpoint("GET", "/models", openai.models),
    Endpoint("GET", "/models/sse", models.watch),
    Endpoint("POST", "/models/load", models.load),
    Endpoint("POST", "/models/unload", models.unload),
    Endpoint("GET", "/models/{name:path}", openai.model),
]
_ANTHROPIC = [
    Endpoint("POST", "/v1/messages", generation(messages.read), messages.MEMBERS),
    Endpoint("POST", "/v1/messages/count_tokens", anthropic.count_tokens, messages.MEMBERS),
]
_OLLAMA = [
    Endpoint("GET", "/", ollama.root),
    Endpoint("GET", "/api/version", ollama.version),
    Endpoint("GET", "/api/tags", ollama.tags),
    Endpoint("GET", "/api/ps", ollama.running),
    Endpoint("POST", "/api/show", ollama.show),
    Endpoint("POST", "/api/chat", ollama.answering(ollama_requests.read_chat), ollama_requests.MEMBERS),
    Endpoint("POST", "/api/generate", ollama.answering(ollama_requests.read_generate), ollama_requests.MEMBERS),
    Endpoint("POST", "/api/embed", ollama.embed),
    Endpoint("POST", "/api/embeddings", ollama.embeddings),
]
_LLAMA_SERVER = [Endpoint("POST", "/infill", generation(infill.read), infill.MEMBERS)]
_SYSTEM = [
    Endpoint("GET", "/health", system.health),
    Endpoint("GET", "/metrics", system.metrics),
    Endpoint("GET", "/props", openai.props),
    Endpoint("GET", "/card/capacity", system.capacity),
]


def _below(prefix: str, endpoints: list[Endpoint]) -> list[Endpoint]:
    return [Endpoint(each.method, prefix + each.path, each.handler, each.members) for each in endpoints]


# Clients are configured with and without `/v1` at the end of the URL.
ENDPOINTS = [*_below("/v1", _OPENAI), *_OPENAI, *_ANTHROPIC, *_OLLAMA, *_LLAMA_SERVER, *_SYSTEM]
