"""What the engine process gives up: its memory may hold prompts, and it can be started again."""

import contextlib
import resource
from pathlib import Path

# Where memory runs out the kernel is to end an engine before the daemon, or anybody's other programs.
_OOM_SCORE = 500
_MOST_OOM_SCORE = 1000


def confine(oom_score: Path = Path("/proc/self/oom_score_adj")) -> None:
    """Leave no core file, and be the first to go where memory runs out (Linux)."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        score = int(oom_score.read_text()) + _OOM_SCORE
        oom_score.write_text(str(min(_MOST_OOM_SCORE, score)))
