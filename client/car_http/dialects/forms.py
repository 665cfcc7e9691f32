"""Bodies of the type multipart/form-data: a request, and the files that belong to it."""

from email.message import Message
from email.parser import BytesHeaderParser

from car_http.problems import Problem
from car_protocol.limits import MAX_IMAGES

_REQUEST = "request"
_BREAK = b"\r\n"
_HEAD_END = b"\r\n\r\n"
_HEADS = BytesHeaderParser()
# Of a header with a boundary, and of the head of a part: several times what a browser sends for a long file name. The
# standard library's time for it grows with its square.
_MOST_HEAD_BYTES = 4096


def request_and_files(content_type: str, body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Return the part named `request`, and the other parts by their names; raises Problem."""
    found = _parts(content_type, body)
    if (request := found.pop(_REQUEST, None)) is None:
        raise _wrong("the form has no part `request`: put the JSON there, and each image into a part of its own")
    return request, found


def members_and_file(content_type: str, body: bytes, file: str) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the texts of a form by their names, and its part of the name `file` by that name; raises Problem."""
    found = _parts(content_type, body)
    files = {name: found.pop(name) for name in [file] if name in found}
    return {name: text.decode(errors="replace") for name, text in found.items()}, files


def _parts(content_type: str, body: bytes) -> dict[str, bytes]:
    if len(content_type) > _MOST_HEAD_BYTES:
        raise _wrong(f"the header `Content-Type` has more than {_MOST_HEAD_BYTES:,} bytes: send a shorter boundary")
    about = Message()
    about["content-type"] = content_type
    boundary = about.get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        raise _wrong("the header `Content-Type` names no boundary")
    # One search through the body for each part: the standard library's parser goes through it line by line.
    pieces = (_BREAK + body).split(_BREAK + b"--" + boundary.encode("latin-1", "replace"), MAX_IMAGES + 3)
    if len(pieces) > MAX_IMAGES + 3:
        raise _wrong(f"the form has more than {MAX_IMAGES} files: send fewer images")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise _wrong("the form has no end: send all of it")
    found: dict[str, bytes] = {}
    for piece in pieces[1:-1]:
        head, _, content = piece.partition(_HEAD_END)
        if len(head) > _MOST_HEAD_BYTES:
            raise _wrong(f"the head of a part has more than {_MOST_HEAD_BYTES:,} bytes: send the name alone")
        name = _HEADS.parsebytes(head.lstrip() + _HEAD_END).get_param("name", header="content-disposition")
        if not isinstance(name, str):
            raise _wrong("a part of the form has no name: give `Content-Disposition: form-data; name=...`")
        if name in found:
            raise _wrong(f"the form has the part `{name}` twice: send it once", name)
        found[name] = content
    return found


def _wrong(why: str, part: str | None = None) -> Problem:
    return Problem(400, "invalid_form", why, param=part)
