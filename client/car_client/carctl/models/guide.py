"""The built-in model, which a newcomer meets first, and the way to another one."""

GUIDE = "guide"
HINT = "the guide answers, which knows only card; your own model: carctl models suggest"
