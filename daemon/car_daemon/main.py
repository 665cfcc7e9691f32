"""Entry of the `card` command."""

# The module behind `signal`, which takes 10 ms to import because of its enums: Ctrl-C must be handled before that.
import _signal  # type: ignore[import-not-found]  # no stubs
import gc
import mmap
import sys

# The most address space that a start takes: 245 MiB, half of it what malloc reserves for two threads. With less, a
# thread can die between two of its lines, and the daemon would crash, or wait for that thread for ever.
_NEEDED_BYTES = 256 << 20
# As `command.EX_OSERR`, for a start that does not get that far.
_EX_OSERR = 71
# `pip install card-daemon` alone is the client.
_INSTALL = "; install what the daemon needs: pip install 'card-daemon[daemon]'"


def main() -> None:
    """Run the daemon; exits 0 after a clean stop."""
    # Until the daemon handles signals itself, Ctrl-C ends the process without a traceback, and SIGHUP, whose default is
    # to end it, is ignored.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)
    # A collection while modules load takes 6 ms of every start and frees nothing, because modules stay for good.
    gc.disable()
    try:
        mmap.mmap(-1, _NEEDED_BYTES, flags=mmap.MAP_PRIVATE).close()
    except OSError as error:
        need = f"it takes {_NEEDED_BYTES >> 20} MiB of address space; see `ulimit -v` and `ulimit -d`"
        sys.stderr.write(f"card: cannot start: {error.strerror}: {need}\n")
        sys.exit(_EX_OSERR)
    try:
        from car_base.host.signals import ignore_stray_signals
        from car_daemon.command import run
    except (ImportError, MemoryError, OSError, SystemError) as error:
        # Under a limit on memory libraries cannot be mapped, and Python's own imports fail without an exception.
        remedy = _INSTALL if isinstance(error, ModuleNotFoundError) else ""
        sys.stderr.write(f"card: cannot start: {type(error).__name__}: {error}{remedy}\n")
        sys.exit(_EX_OSERR)
    ignore_stray_signals()
    gc.freeze()
    # A closed connection is a cycle of objects, and a hundred of them are 1.5 MB: a full collection, which visits only
    # what came after the start, follows soon.
    gc.set_threshold(700, 10, 2)
    gc.enable()
    sys.exit(run(sys.argv[1:]))
