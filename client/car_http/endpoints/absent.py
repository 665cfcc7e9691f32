"""Endpoints of the dialects that the door does not have, and what to do in their place."""

_MODELS = "the door changes no models: `carctl models pull`, `add` and `rm` do"
_BATCHES = 'batches are not stored: send each request by itself, with "card": {"priority": "throughput"}'
_STORED = "answers are not stored: send the whole conversation with every request"
_FILES = "files are not stored: send their texts and images in the conversation"
_TEXT = "the models of this machine answer in text: POST /v1/chat/completions takes images and sounds"
_INSTEAD = {
    **dict.fromkeys(("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs"), _MODELS),
    **dict.fromkeys(("/messages/batches", "/batches"), _BATCHES),
    **dict.fromkeys(("/responses/resp_", "/chat/completions/chatcmpl-", "/conversations", "/threads"), _STORED),
    **dict.fromkeys(("/files", "/uploads", "/vector_stores"), _FILES),
    **dict.fromkeys(("/images", "/audio", "/videos"), _TEXT),
}


def absence(path: str) -> str:
    """Return the message for a path that no endpoint has."""
    below = path.removeprefix("/v1")
    instead = next((why for prefix, why in _INSTEAD.items() if below.startswith(prefix)), None)
    return f"there is no such endpoint: {instead or 'GET /openapi.json lists them'}"
