"""`POST /infill`, llama-server's: the text of a gap between two others, for editors."""

from msgspec import Struct

from car_http.dialects.common import Caller, as_sent, own_params
from car_http.dialects.job import Job
from car_http.dialects.llama_writer import LlamaWriter, written_params
from car_http.dialects.openai_chat import NAMES, Sampled
from car_http.problems import bad

_NAMES = {**NAMES, "prompt": ("input_prefix",), "suffix": ("input_suffix",)}


class ExtraFile(Struct, kw_only=True):
    """A text of another file."""

    text: str
    filename: str = ""


class InfillRequest(Sampled, kw_only=True):
    """The body; members that it does not name are dropped."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] | None = None
    prompt: str | None = None


def read(request: InfillRequest, caller: Caller) -> Job:
    """Translate a request; raises Problem."""
    if request.n not in (None, 1):
        raise bad("n", "send a request for each answer")
    # What llama-server puts after the gap's mark is the beginning of the gap: here it ends the text before.
    before = [*(extra.text for extra in request.input_extra or []), request.input_prefix, request.prompt or ""]
    params = written_params(request, caller) | {"prompt": "".join(before), "suffix": request.input_suffix}
    writer = LlamaWriter(request, params)
    return Job(params | own_params(caller, request.card), request.streams, writer, as_sent(request, _NAMES, caller))
