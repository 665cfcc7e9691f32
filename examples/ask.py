"""A whole answer, a streamed one and a deadline, without an event loop."""

from car_client import Client, DeadlineExceeded

with Client(timeout=60) as client:
    print(client.infer(messages=[{"role": "user", "content": "What is capacity?"}], temperature=0).text)

    for chunk in client.infer_stream(messages=[{"role": "user", "content": "What is the gate?"}], temperature=0):
        print(chunk.text, end="", flush=True)
    print()

    # A deadline before the first token is an error; after it the answer ends early, with finish_reason "deadline".
    try:
        early = client.infer("Tell me a long story", ignore_eos=True, max_tokens=4000, timeout_ms=100)
        print(f"{early.finish_reason} after {early.usage.completion_tokens} tokens")
    except DeadlineExceeded as error:
        print(f"no token in time: {error}")
