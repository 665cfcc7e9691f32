"""The table of the rules by which an engine declares its capacity."""

from car_protocol import capacity
from tools.reference.comments import said_of
from tools.reference.protocol import table


def policies() -> str:
    """Return every policy with the figure that it declares."""
    rows = [(f"`{policy}`", said) for policy, said in said_of(capacity.Policy, capacity)]
    return table(("policy", "declares"), rows)


TABLES = {"policies": policies}
