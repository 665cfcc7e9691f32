"""Facts from a text as JSON that is always valid under a schema.

The daemon guarantees the form; the contents are the model's, and the built-in one is too small to read a letter.
"""

import json

from car_client import Client

SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["pleased", "annoyed", "neutral"]},
        "urgent": {"type": "boolean"},
        "items": {"type": "array", "items": {"enum": ["tea", "coffee", "sugar"]}, "maxItems": 3},
    },
    "required": ["mood", "urgent", "items"],
}
LETTER = "Two packets of tea, please, and quickly. The last delivery was late, and I am not amused."

with Client() as client:
    answer = client.infer(
        messages=[{"role": "user", "content": f"What does this customer want?\n\n{LETTER}"}],
        json_schema=SCHEMA,
        temperature=0,
        max_tokens=200,
    )
    order = json.loads(answer.text)
    print(f"mood: {order['mood']}, urgent: {order['urgent']}, items: {', '.join(order['items']) or 'none'}")
