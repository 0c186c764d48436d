"""Signals that end a command: the first one asks it to end, a second one ends it at once.

And the sign of life that systemd asks for (WatchdogSec).
"""

import asyncio
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Self

from provider.clock import SystemClock

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ECHO_S = 0.3
"""Seconds after a signal in which another one is the same request: `timeout`, `make` and
supervisors signal a process and its group."""
SHOW_CURSOR = "\x1b[?25h"
WORDS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "ended by SIGHUP",
}


class Signalled(BaseException):
    """A signal ended the command: `number`, and what was done until then."""

    def __init__(self, number: int, done: str = "") -> None:
        super().__init__(number)
        self.number = number
        self.done = done

    def __str__(self) -> str:
        word = WORDS[signal.Signals(self.number)]
        return f"{word}: {self.done}" if self.done else word


class _TwoSignals:
    """The first ending signal, which is a request, and the end of the process by a later one."""

    def __init__(self, ask: Callable[[], object], now_s: Callable[[], float]) -> None:
        self.first: int = 0
        """The number of the signal that came first; 0 while none came."""
        self._at_s = 0.0
        self._ask = ask
        self._now_s = now_s

    def _take(self, number: int, _: object = None) -> None:
        now_s = self._now_s()
        if not self.first:
            self.first, self._at_s = number, now_s
            self._ask()
        elif now_s - self._at_s >= ECHO_S:
            _end_now(number)


def _ending() -> list[signal.Signals]:
    """The ending signals, but for a SIGHUP that the caller ignores, as `nohup` does."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in ENDING if number != signal.SIGHUP or not ignored]


class EndingSignals(_TwoSignals):
    """Handlers of SIGINT, SIGTERM and SIGHUP while the current event loop runs."""

    def __init__(
        self, ask: Callable[[], object], *, now_s: Callable[[], float] | None = None
    ) -> None:
        """Call `ask` at the first of them; at a second one, end the process.

        It may be ended at any moment: unpublished bytes are invisible, and the next start
        continues. SIGHUP stays ignored where the caller ignores it, as `nohup` does.
        """
        loop = asyncio.get_running_loop()
        super().__init__(ask, now_s or loop.time)
        for number in _ending():
            loop.add_signal_handler(number, self._take, number)


class EndRequest(_TwoSignals):
    """Request to end a synchronous command, by the first of SIGINT, SIGTERM and SIGHUP.

    A second signal ends the process at once. Use `with`.
    """

    def __init__(self) -> None:
        super().__init__(self._show, SystemClock().monotonic_s)
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Take the signals, in the main thread alone. SIGHUP stays ignored, as `nohup` has it."""
        # A handler may run while the thread is inside of an `Event`, whose lock it would wait for.
        self._read, self._write = os.pipe()
        if threading.current_thread() is threading.main_thread():
            for number in _ending():
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float) -> bool:
        """Return whether the request is made, at once or within some seconds."""
        return bool(select.select([self._read], [], [], seconds)[0])

    def _show(self) -> None:
        os.write(self._write, b"1")


@contextmanager
def sigterm_unwinds() -> Generator[None]:
    """Raise `Signalled` in the block at SIGTERM, so that it releases what it holds.

    A second SIGTERM ends the process at once. No effect outside the main thread, or where SIGTERM
    has a handler or is ignored.
    """
    clock = SystemClock()
    begun_s: float | None = None

    def unwind(number: int, _: object) -> None:
        nonlocal begun_s
        if begun_s is None:
            begun_s = clock.monotonic_s()
            raise Signalled(number)
        if clock.monotonic_s() - begun_s >= ECHO_S:
            _end_now(number)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def answer_watchdog() -> None:
    """Show a supervisor that asks for it, as systemd does, that the current event loop turns.

    Twice in each period, for as long as the loop runs.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith("@"):  # in the abstract name space
        address = f"\0{address[1:]}"
    period_us = os.environ.get("WATCHDOG_USEC", "")
    is_ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if not (address and period_us.isdecimal() and int(period_us) and is_ours):
        return
    loop = asyncio.get_running_loop()

    def show() -> None:
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sender:
            sender.sendto(b"WATCHDOG=1", address)
        loop.call_later(int(period_us) / 2e6, show)

    show()


def _end_now(number: int) -> None:
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), f"\r{SHOW_CURSOR}\n".encode())
    os._exit(128 + number)
