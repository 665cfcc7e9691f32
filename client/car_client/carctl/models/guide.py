"""The built-in model, which a newcomer meets first, and the way to another one."""

GUIDE = "guide"
HINT = "the built-in guide answers, which knows card alone; a model of your own: carctl models suggest"
