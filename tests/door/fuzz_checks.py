"""The check that schemathesis adds to its own: every refusal has its dialect's form and says what is at fault."""

import re
from typing import Any

import schemathesis

MEANT = {503, 504}
_DEADLINES = {"timeout_ms", "queue_timeout_ms"}
# Refusals of bodies whose form is right: the model, the text, or the machine cannot serve them.
_OF_VALUES = re.compile(r"model|token|grammar|schema|limit|context|daemon|queue", re.IGNORECASE)


def message_of(body: Any) -> str:
    """Return the message of an error in any dialect."""
    detail = body.get("detail")
    if detail is not None:
        return str(detail[0]["msg"] if isinstance(detail, list) else detail["message"])
    error = body["error"]
    return str(error if isinstance(error, str) else error["message"])


@schemathesis.check
def errors_have_a_meaning(ctx: Any, response: Any, case: Any) -> None:
    """Check that a server's error says when to come back, and that a refusal has a text of its own."""
    if response.status_code < 400:
        return
    message = message_of(response.json())
    assert message.strip(), "an error without a message"
    assert response.status_code < 500 or response.status_code in MEANT, f"a defect: {response.status_code}"
    if response.status_code == 503:
        assert response.headers.get("retry-after"), "503 without a time of the next attempt"
    if response.status_code == 504:
        assert _DEADLINES & case.body.get("card", {}).keys(), "504 to a request without a deadline"


@schemathesis.check
def valid_bodies_are_not_refused_by_their_form(ctx: Any, response: Any, case: Any) -> None:
    """Check that a body that is valid by the document is refused for a named member or for its value alone."""
    generated = case.meta and case.meta.generation.mode.is_positive
    if not generated or response.status_code not in (400, 422):
        return
    error, detail = response.json().get("error"), response.json().get("detail")
    named: object = isinstance(error, dict) and error.get("param") is not None
    named = named or (isinstance(detail, list) and len(detail[0]["loc"]) > 1)
    message = message_of(response.json())
    named = named or re.match(r"[\w.\[\]]+: ", message) or _OF_VALUES.search(message)
    assert named, f"a valid body is refused without the member at fault: {message}"
