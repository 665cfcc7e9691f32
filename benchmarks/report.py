"""How a benchmark says a figure."""


def say(what: str, value: float, *more: float) -> None:
    """Print one line: what, its figure, and its worst case if there is one."""
    extra = "".join(f"  ({one:.1f})" for one in more)
    print(f"{what:75} {value:9.2f}{extra}", flush=True)
