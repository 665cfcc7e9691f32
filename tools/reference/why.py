"""The table of the reasons for which a prompt is read again, as `carctl why` tells them."""

from car_client.carctl.why import REASONS
from tools.reference.protocol import table


def reasons() -> str:
    """Return every reason with what happened, and what to do about it."""
    return table(("`reason`", "what happened", "to do"), [(f"`{name}`", *said) for name, said in REASONS.items()])


TABLES = {"parted": reasons}
