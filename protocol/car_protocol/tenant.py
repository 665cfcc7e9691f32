"""The member `tenant`: the name of a caller that the sending process serves."""

from typing import Annotated

from car_protocol.notes import note

MAX_TENANT_BYTES = 64

Tenant = Annotated[
    str,
    note(
        f"the caller that the process sends this for, a name of up to {MAX_TENANT_BYTES} bytes; a process's leases and "
        "places are shared by tenant, and a tenant's by label; all requests without a name are of one tenant"
    ),
]


def check_tenant(tenant: str) -> None:
    """Raise ValueError for a name that is too long."""
    if len(tenant.encode()) > MAX_TENANT_BYTES:
        raise ValueError(f"`tenant`: the name has more than {MAX_TENANT_BYTES} bytes")
