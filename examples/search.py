"""Search by meaning: texts and a question become vectors, and the nearest text is the best match.

Vectors have length 1, so their dot product is their cosine. The built-in model matches similar words; one made for
embedding matches meanings.
"""

from car_client import Client

TEXTS = [
    "What is card?",
    "How do I change the queue limit?",
    "What is memory pressure?",
    "How do I stream an answer?",
    "How do I cancel a request?",
]
QUESTIONS = ["How can I change the limit of the queue?", "Explain memory pressure", "Can I cancel requests?"]

with Client() as client:
    # Up to 256 texts a request share one lease.
    known = client.embed(TEXTS).embeddings
    for question, vector in zip(QUESTIONS, client.embed(QUESTIONS).embeddings, strict=True):
        scores = [sum(a * b for a, b in zip(vector, each, strict=True)) for each in known]
        best = max(range(len(TEXTS)), key=scores.__getitem__)
        print(f"{question} -> {TEXTS[best]}")
