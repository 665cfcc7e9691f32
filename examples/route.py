"""An `if` that reads text: one decision routes a ticket, by probabilities in place of words.

The second decision about the same ticket computes its question alone: the daemon has the ticket in its cache.
"""

from car_client import Choice, Client, Level, Option, Predicate, Score

TICKET = "I was charged twice for my order last week, and nobody has replied. Please refund one of the payments."
TEAMS = Choice(
    name="team",
    instructions="Which team should handle this ticket?",
    options=[Option("billing", "payments and refunds"), Option("shipping", "parcels"), Option("tech", "the website")],
)
URGENCY = Score(
    name="urgency", instructions="How urgent is it?", levels=[Level("can wait"), Level("today"), Level("now")]
)

with Client(timeout=60) as client:
    decision = client.decide(TICKET, [TEAMS, URGENCY], orders=2)
    team, urgency = decision["team"], decision["urgency"]
    # Where the labels have little of the model's probability, it did not understand the form.
    sure = team.confidence > 0.5 and team.mass > 0.5
    print(f"to {team.choice if sure else 'a person'} (confidence {team.confidence:.2f}, mass {team.mass:.2f})")
    print(f"urgency {urgency.score:.1f} of 2")

    angry = Predicate(name="angry", instructions="Is the customer angry?")
    again = client.decide(TICKET, [angry])
    print(f"angry: {again['angry'].probability:.2f}, {again.usage.computed_tokens} tokens computed")
