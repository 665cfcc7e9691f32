"""`carctl why`: how much of the last prompts was computed, and where a prompt parts from the nearest earlier one."""

from argparse import ArgumentParser, Namespace

import msgspec

from car_client.carctl.terminal.text import clipped, duration
from car_client.client import Client
from car_client.errors import CardError
from car_protocol.answer import MOSTLY_NEW, Parted, PartedBy
from car_protocol.status import ReadPrompt

# What happened, and what the app or its user can do.
REASONS: dict[PartedBy, tuple[str, str]] = {
    "system": ("its system message differs", "put what changes, as a date, after what stays the same"),
    "tools": ("its tools differ", "send the same tools in the same order"),
    "message": ("this message differs", "nothing, if it is new; else send earlier messages as they were"),
    "template": ("the chat template wrote other text", "look for dates and dropped thoughts in the template"),
    "prompt": ("its text differs", "put what changes after what stays the same"),
    "evicted": ("its cells had to leave for other prompts", "raise `saved_bytes`, or let fewer conversations run"),
    "no_mark": ("the model cannot go on at this place", "nothing: the next prompt that parts here can"),
    "restart": ("its cells ended with their engine", "set `cache_dir` to keep them"),
}
# The prompts do not differ in these tokens.
_LOST = ("evicted", "no_mark", "restart")

# The last token of a prompt is always computed: its logits are not kept.
_ALL = "nothing was read again"


class Forgotten(CardError):
    """The daemon remembers no such request."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("id", nargs="?", metavar="ID", help="the id of a request; default: all, a line each")
    which.add_argument("--last", action="store_true", help="the last request alone")


def run(client: Client, options: Namespace) -> None:
    """Print the last prompts, or one with its reason."""
    prompts = client.why().prompts
    if options.id is not None:
        prompts = [each for each in prompts if str(each.id) == options.id]
    if not prompts:
        named = "" if options.id is None else f" with the id {options.id}"
        raise Forgotten(f"the daemon remembers no answer of yours{named}")
    if options.last or options.id is not None:
        print("\n".join(map(clipped, _page(prompts[0]))))
        return
    for each in prompts:
        parted = each.parted
        side = "before" if parted is not None and parted.reason in _LOST else "after"
        reason = "" if parted is None else f"  {parted.reason} {side} {parted.at:,}"
        print(clipped(f"{each.id!s:<8}{duration(each.age_s):>7} ago  {_figures(each)}{reason}"))


def _page(prompt: ReadPrompt) -> list[str]:
    lines = [f"request {prompt.id} to {prompt.model}, {duration(prompt.age_s)} ago: {_figures(prompt)}"]
    if (parted := prompt.parted) is None:
        read = prompt.prompt_tokens - prompt.cached_tokens
        return [*lines, f"no earlier prompt has cells that it may reuse for the other {read:,}" if read > 1 else _ALL]
    happened, advice = REASONS[parted.reason]
    where = "" if parted.message is None else f", in message {parted.message} ({parted.role})"
    place = f"of the first {parted.at:,}" if parted.reason in _LOST else f"after {parted.at:,}{where}"
    verb = "computed" if parted.reason in MOSTLY_NEW else "read again"
    lines += [f"{parted.tokens:,} tokens were {verb} {place}", f"why: {happened}"]
    lines += [f"  {name}  {_quoted(text)}" for name, text in _words(parted) if text is not None]
    return [*lines, f"to do: {advice}"]


def _words(parted: Parted) -> list[tuple[str, str | None]]:
    return [("was", parted.was), ("now", parted.now)]


def _figures(prompt: ReadPrompt) -> str:
    return f"{prompt.cached_tokens:,} of {prompt.prompt_tokens:,} tokens cached"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
