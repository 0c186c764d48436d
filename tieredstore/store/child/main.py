"""Tiering process of a store: `python -m tieredstore.store.child.main FD PARENT`.

Owns the tier while its parent lives. It ends at once with its parent, as if killed: whatever it was
doing, the next owner continues from the published state.
"""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from logging.handlers import QueueHandler

from provider.clock import SystemClock
from tieredstore.lifetime import keep_opened
from tieredstore.store.child.owner import TieringOwner
from tieredstore.store.child.remote_log import Opening
from tieredstore.store.child.wire import Peer

PR_SET_PDEATHSIG = 1
"""`prctl(2)`: signal that the kernel sends when the parent ends."""


class _ParentHandler(QueueHandler):
    """Sends log records to the store's process, where its handlers are."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(None)  # pyright: ignore[reportArgumentType] - `enqueue` uses none
        self._peer = peer
        self._loop = asyncio.get_running_loop()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send one record, from any thread."""
        self._loop.call_soon_threadsafe(self._peer.note, "log", record)


def _forward_logs(peer: Peer, opening: Opening) -> None:
    root = logging.getLogger()
    root.handlers = [_ParentHandler(peer)]
    root.setLevel(opening.log_level)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, also by SIGKILL.

    Signals to the parent's group, as of a terminal or a service manager, are the parent's to
    answer: it closes this process in order.
    """
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(0)


async def _serve(descriptor: int) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))
    owner = TieringOwner(
        SystemClock(),
        on_opening=_forward_logs,
        on_open=keep_opened,
        on_orphaned=lambda: os._exit(0),
    )
    await owner.run(reader, writer)


def main() -> None:
    """Run the process that `process.py` starts."""
    descriptor, parent = map(int, sys.argv[1:])
    end_with(parent)
    asyncio.run(_serve(descriptor))
    os._exit(0)  # threads of a storage client may wait for their requests


if __name__ == "__main__":
    main()
