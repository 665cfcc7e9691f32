"""Search by meaning: texts become vectors once, a question becomes one, and the nearest text is the best match.

Vectors have length 1, so their dot product is their cosine. A model made for embedding does this far better than the
built-in one, which sees that words are alike and little more.
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
    # Up to 256 texts a request; they take one lease together.
    known = client.embed(TEXTS).embeddings
    for question, vector in zip(QUESTIONS, client.embed(QUESTIONS).embeddings, strict=True):
        scores = [sum(a * b for a, b in zip(vector, each, strict=True)) for each in known]
        best = max(range(len(TEXTS)), key=scores.__getitem__)
        print(f"{question} -> {TEXTS[best]}")
