"""A user of the soak in a process of its own: `python -m benchmarks.soaking.users UID SOCKET SEED TEMPLATES`.

Seed 0 is the user that means well. It runs until standard input ends, and prints what happened as JSON.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from random import Random

import msgspec

from benchmarks.soaking.attacks import Attacker, large_picture
from benchmarks.soaking.books import Json
from benchmarks.soaking.load import questions

_LANES = 2
_ATTACKS = 3
_PAUSE_PER_S = 4


class Honest:
    """Asks questions with known answers; `took` are seconds, `wrong` are answers that differ, and errors.

    `slowest` are the daemon's timings of the answer that took longest.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._known = questions()
        self._random = Random(0)
        self.took: list[float] = []
        self.wrong: list[str] = []
        self.slowest: Json = {}

    async def run(self, until: asyncio.Event) -> None:
        """Ask one question after the other until the event."""
        reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=1 << 24)
        while not until.is_set():
            question, answer = self._random.choice(self._known)
            params = {"messages": [{"role": "user", "content": question}], "temperature": 0}
            method = self._random.choice(["infer", "infer_stream"])
            begun = time.monotonic()
            writer.write(msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + b"\n")
            text, timings = await self._answer(reader)
            self.took.append(time.monotonic() - begun)
            if self.took[-1] == max(self.took):
                self.slowest = timings
            if text != answer:
                self.wrong.append(f"{method}: {question}: {text[:200]}")
            await asyncio.sleep(self._random.expovariate(_PAUSE_PER_S))
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, Json]:
        """Return the text of an answer, or its error, and its timings."""
        text = ""
        while line := await reader.readline():
            message = msgspec.json.decode(line)
            if "params" in message:
                text += message["params"]["text"]
            elif "result" in message:
                return text or str(message["result"]["text"]), message["result"]["timings"]
            else:
                return f"error: {message['error']}", {}
        return "error: the daemon closed the connection", {}


async def _play(socket: Path, seed: int, templates: int, picture: str) -> Json:
    until = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, until.set)
    if seed == 0:
        honest = Honest(socket)
        await asyncio.gather(*(honest.run(until) for _ in range(_LANES)))
        return {"took": honest.took, "wrong": honest.wrong, "slowest": honest.slowest}
    attackers = [Attacker(socket, seed * 100 + number, templates, picture) for number in range(_ATTACKS)]
    await asyncio.gather(*(attacker.run(until) for attacker in attackers))
    names = {name for attacker in attackers for name in attacker.tricks}
    return {name: sum(attacker.tricks.get(name, 0) for attacker in attackers) for name in sorted(names)}


def main() -> None:
    """Become the user, and play."""
    uid, socket, seed, templates = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    # Another user may not be able to read the files of this environment.
    picture = large_picture()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    print(json.dumps(asyncio.run(_play(socket, seed, templates, picture))), flush=True)


if __name__ == "__main__":
    main()
