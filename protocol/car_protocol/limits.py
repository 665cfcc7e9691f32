"""The bounds of the wire contract; the capacity object shows them to every client."""

from msgspec import Struct

MAX_FRAME_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 64
MAX_ID_BYTES = 128
MAX_ID_INTEGER = 2**53 - 1
MAX_BATCH = 32
MAX_IN_FLIGHT = 64
MAX_CONNECTIONS = 1024
MAX_CONNECTIONS_PER_UID = 600
QUEUE_LIMIT = 64
QUEUE_MAX_BYTES = 64 * 1024 * 1024
MAX_OUTPUT_BYTES = 1024 * 1024
SLOW_READER_MS = 10_000
FRAME_TIMEOUT_MS = 30_000


class Limits(Struct, frozen=True, kw_only=True):
    """The bounds in force; sizes in bytes, times in milliseconds."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_depth: int = MAX_DEPTH
    max_id_bytes: int = MAX_ID_BYTES
    max_batch: int = MAX_BATCH
    max_connections: int = MAX_CONNECTIONS
    max_connections_per_uid: int = MAX_CONNECTIONS_PER_UID
    max_in_flight: int = MAX_IN_FLIGHT
    queue_limit: int = QUEUE_LIMIT
    queue_max_bytes: int = QUEUE_MAX_BYTES
    max_output_bytes: int = MAX_OUTPUT_BYTES
    slow_reader_ms: int = SLOW_READER_MS
    frame_timeout_ms: int = FRAME_TIMEOUT_MS
