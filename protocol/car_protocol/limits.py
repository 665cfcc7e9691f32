"""The bounds of the wire contract; the capacity object shows them to every client."""

from typing import Annotated

from msgspec import Struct

from car_protocol.meta import note

MAX_FRAME_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 64
# Far more than a schema has; a frame has room for millions, which would keep the daemon from all else for seconds.
MAX_VALUES = 100_000
MAX_MEMBERS = 2 * MAX_VALUES
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
MAX_IMAGES = 64
MAX_IMAGE_PIXELS = 64_000_000
MAX_AUDIO_S = 300
# More than clients that behave need together, and less than the memory of a machine that runs models.
MAX_CLIENT_BYTES = 256 * 1024 * 1024
# What a user may always hold of them: a maximal frame and 1 MiB. The floors of all users take half of the bytes.
USER_FLOOR_BYTES = MAX_FRAME_BYTES + 1024 * 1024
MAX_USERS = MAX_CLIENT_BYTES // 2 // USER_FLOOR_BYTES


class Limits(Struct, frozen=True, kw_only=True):
    """The bounds in force; sizes in bytes, times in milliseconds."""

    max_frame_bytes: Annotated[int, note("a frame, without its newline")] = MAX_FRAME_BYTES
    max_depth: Annotated[int, note("nesting of `json_schema`, `template_args` and the parameters of tools")] = MAX_DEPTH
    max_values: Annotated[int, note("values in each of these, in the parameters of all tools together")] = MAX_VALUES
    max_members: Annotated[int, note("objects, arrays, texts of a frame, and of its calls' arguments")] = MAX_MEMBERS
    max_id_bytes: Annotated[int, note("an id")] = MAX_ID_BYTES
    max_batch: Annotated[int, note("entries of a batch")] = MAX_BATCH
    max_connections: Annotated[int, note("can be configured; lowered if the system allows fewer open files")] = (
        MAX_CONNECTIONS
    )
    max_connections_per_uid: Annotated[int, note("of one user; can be configured")] = MAX_CONNECTIONS_PER_UID
    max_users: Annotated[int, note("connected at once, besides root and the daemon's own user")] = MAX_USERS
    max_client_bytes: Annotated[
        int, note("of all clients: unfinished frames, unread answers; see [bytes](#bytes-of-all-clients)")
    ] = MAX_CLIENT_BYTES
    user_floor_bytes: Annotated[int, note("the part of them that each user always keeps")] = USER_FLOOR_BYTES
    max_in_flight: Annotated[int, note("requests of one connection")] = MAX_IN_FLIGHT
    queue_limit: Annotated[
        int, note("requests that wait; requests outside a full queue do not count; can be configured")
    ] = QUEUE_LIMIT
    queue_max_bytes: Annotated[int, note("their params; can be configured")] = QUEUE_MAX_BYTES
    max_output_bytes: Annotated[int, note("unsent output of a client; see [slow readers](#slow-readers)")] = (
        MAX_OUTPUT_BYTES
    )
    slow_reader_ms: Annotated[int, note("the time that a stream waits for its client to read")] = SLOW_READER_MS
    frame_timeout_ms: Annotated[int, note("from a frame's first byte to its last")] = FRAME_TIMEOUT_MS
    max_images: Annotated[int, note("images and sounds of a request")] = MAX_IMAGES
    max_image_pixels: Annotated[int, note("pixels of all images of a request")] = MAX_IMAGE_PIXELS
    max_audio_s: Annotated[int, note("seconds of all sounds of a request, each rounded up")] = MAX_AUDIO_S
