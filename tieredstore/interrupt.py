"""Ctrl-C where Python cannot be interrupted in the middle: while modules are loaded."""

import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress


@contextmanager
def ctrl_c_ends_at_once() -> Generator[None]:
    """Within the block Ctrl-C ends the process, as the shell expects (status 130), without a word.

    An import that is interrupted by an exception leaves modules half made, and the next import of
    them fails in ways that nobody can explain. Changes nothing where SIGINT has another handler
    than Python's own, or outside the main thread.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    let_ctrl_c_end()
    try:
        yield
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.default_int_handler)


def let_ctrl_c_end() -> None:
    """From now on Ctrl-C ends the process at once, unless somebody else's handler hears it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # another thread than the main one
            signal.signal(signal.SIGINT, signal.SIG_DFL)
