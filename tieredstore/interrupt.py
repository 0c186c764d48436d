"""Ctrl-C during imports, which Python cannot interrupt cleanly."""

import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import ModuleType


@contextmanager
def ctrl_c_ends_at_once() -> Generator[None]:
    """End the process on Ctrl-C within the block, silently and with status 130, as shells expect.

    An exception within an import leaves modules half initialized, and their next import fails with
    misleading errors. No effect if SIGINT has another handler than Python's own, or outside the
    main thread.
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


def imported(module: str) -> ModuleType:
    """Import a module, or find the imported one. Ctrl-C meanwhile ends the process at once."""
    with ctrl_c_ends_at_once():
        return import_module(module)


def let_ctrl_c_end() -> None:
    """End the process at once on Ctrl-C from now on, unless another handler is installed."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # another thread than the main one
            signal.signal(signal.SIGINT, signal.SIG_DFL)
