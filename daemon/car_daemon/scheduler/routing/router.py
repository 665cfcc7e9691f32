"""The choice of a replica: the one that ran the session, the one that has most of the prompt, else the fastest."""

from collections import Counter, OrderedDict
from collections.abc import Callable

from car_daemon.scheduler.request import Request, Session

# Prompts are compared in blocks of 64 tokens of four bytes.
_BLOCK_BYTES = 4 * 64
# Blocks remembered for each engine and of all, sessions, and engines of a block; the least recently used are forgotten.
_MOST_BLOCKS = 4096
_MOST_BLOCKS_OF_ALL = 65_536  # 20 MiB
_MOST_SESSIONS = 4096
_MOST_HOLDERS = 8


def blocks_of(tokens: bytes, namespace: str) -> tuple[int, ...]:
    """Return a hash for each whole block of a prompt: equal where the block and all before it are equal."""
    blocks = []
    number = hash(namespace)
    for end in range(_BLOCK_BYTES, len(tokens) + 1, _BLOCK_BYTES):
        number = hash((number, tokens[end - _BLOCK_BYTES : end]))
        blocks.append(number)
    return tuple(blocks)


class Router:
    """Remembers which engine ran which session and prompt; a wrong guess costs one prefill."""

    def __init__(self) -> None:
        self.at_home: Counter[int] = Counter()  # sessions by engine
        self._homes: OrderedDict[tuple[str, Session], int] = OrderedDict()  # a session's last engine, oldest first
        self._engines: set[int] = set()  # that ran a request and live
        self._holders: OrderedDict[int, tuple[int, ...]] = OrderedDict()  # of a block, dead ones too; oldest use first

    def __repr__(self) -> str:
        return f"<Router {len(self._homes)} sessions, {len(self._holders)} blocks>"

    def home(self, request: Request) -> int | None:
        """Return the engine that ran a request's session last."""
        session = request.spec.session
        return None if session is None else self._homes.get((request.model, session))

    def holder(self, request: Request, is_free: Callable[[int], bool]) -> int | None:
        """Return the free engine that has most blocks of a prompt; the latest of several."""
        blocks = reversed(request.prompt.blocks)
        holders = (engine for block in blocks for engine in reversed(self._holders.get(block, ())))
        return next((engine for engine in holders if is_free(engine)), None)

    def started(self, request: Request, engine: int) -> list[int]:
        """Remember a request's engine; return the engines whose number of sessions changed."""
        self._engines.add(engine)
        # The first blocks of a prompt are those that others begin with too: they are forgotten last.
        for block in reversed(request.prompt.blocks):
            self._hold(block, engine)
        while len(self._holders) > min(_MOST_BLOCKS * len(self._engines), _MOST_BLOCKS_OF_ALL):
            self._holders.popitem(last=False)
        session = request.spec.session
        return [] if session is None else self._settle((request.model, session), engine)

    def withdraw(self, engine: int) -> None:
        """Forget a dead engine; its number is never another's."""
        self._engines.discard(engine)
        if self.at_home.pop(engine, 0):
            for settled in [settled for settled, home in self._homes.items() if home == engine]:
                del self._homes[settled]

    def _hold(self, block: int, engine: int) -> None:
        others = [each for each in self._holders.get(block, ()) if each != engine]
        self._holders[block] = (*others[1 - _MOST_HOLDERS :], engine)
        self._holders.move_to_end(block)

    def _settle(self, session: tuple[str, Session], engine: int) -> list[int]:
        changed = [engine]
        self.at_home[engine] += 1
        if session in self._homes:
            changed.append(self._homes[session])
            self.at_home[self._homes[session]] -= 1
        self._homes[session] = engine
        self._homes.move_to_end(session)
        if len(self._homes) > _MOST_SESSIONS:
            _, left = self._homes.popitem(last=False)
            self.at_home[left] -= 1
            changed.append(left)
        return changed
