"""Counts calls of the project's own functions while a block runs."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[2]
# What a page leaves out of a path.
PACKAGES = ("daemon/car_daemon/", "daemon/", "protocol/car_protocol/")
OURS = tuple(str(ROOT / folder) for folder in ("daemon", "protocol"))


@dataclass
class Visit:
    """A stay in one file: the functions that were called there, in order, until another file's turn."""

    file: str
    functions: list[str]


@dataclass
class Profile:
    """Calls of our functions, and the visits to files that they make."""

    calls: int = 0
    visits: list[Visit] = field(default_factory=list)
    functions: Counter[str] = field(default_factory=Counter)

    @property
    def changes(self) -> int:
        """Calls into another file than the call before."""
        return len(self.visits)

    @property
    def files(self) -> set[str]:
        """The files that were visited."""
        return {visit.file for visit in self.visits}

    def add(self, code: CodeType) -> None:
        """Count one call."""
        file = Path(code.co_filename).relative_to(ROOT).as_posix()
        for package in PACKAGES:
            file = file.removeprefix(package)
        self.calls += 1
        self.functions[f"{file}:{code.co_qualname}"] += 1
        if not self.visits or self.visits[-1].file != file:
            self.visits.append(Visit(file, []))
        self.visits[-1].functions.append(code.co_qualname)


@contextmanager
def profiled() -> Iterator[Profile]:
    """Count the calls of this thread in a block."""
    profile = Profile()

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS) and not _is_by_tool(frame):
            profile.add(frame.f_code)

    sys.setprofile(watch)
    try:
        yield profile
    finally:
        sys.setprofile(None)


def _is_by_tool(frame: FrameType) -> bool:
    """Tell whether a tool made the call: a scripted engine encodes its frames with the daemon's own functions."""
    return frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(str(ROOT / "tools"))
