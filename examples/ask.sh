# Ask the daemon and print its answer as it comes; needs OpenBSD's netcat and jq.
socket=${CAR_SOCKET:-${XDG_RUNTIME_DIR:-/tmp/car-$(id -u)}${XDG_RUNTIME_DIR:+/car}/card.sock}
jq -nc --arg question "$1" '{jsonrpc: "2.0", id: 1, method: "infer_stream",
    params: {messages: [{role: "user", content: $question}], temperature: 0}}' |
    nc -UN "$socket" |
    jq -rj --unbuffered 'if .method == "infer_stream/chunk" then .params.text
        elif .error then "error \(.error.code): \(.error.message)\n" | halt_error(1)
        else "\n\(.result.usage.completion_tokens) tokens\n" end'
