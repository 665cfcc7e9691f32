"""Entry of the engine process: `python -m car_engine FD [FD]` with connected sockets to the daemon.

The first is for frames, the second for files of cells.
"""

import os
import signal
import socket
import sys

from car_base.host.signals import ignore_stray_signals

if __name__ == "__main__":
    # The daemon decides when an engine ends, also if a terminal's keys reach both.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    ignore_stray_signals()
    descriptors = [int(each) for each in sys.argv[1:]]
    try:
        from car_engine.child_server import start_child_server

        # Before libraries start threads, because a process with threads must not fork.
        children = start_child_server(descriptors)
        from car_engine.process import EngineProcess, yield_to_others
    except (ImportError, MemoryError, OSError, SystemError) as error:
        # Under a limit on memory libraries cannot be mapped, and Python's own imports fail without an exception.
        sys.exit(f"card engine: cannot start: {type(error).__name__}: {error}")
    yield_to_others()
    daemon, *files = (socket.socket(fileno=each) for each in descriptors)
    code = EngineProcess(daemon, children, files=files[0] if files else None).serve()
    # At once, because the loop thread may be inside llama_decode and its results are not read any more.
    os._exit(code)
