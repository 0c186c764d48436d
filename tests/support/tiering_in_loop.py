"""Tiering processes as tasks of the test's loop: all of the protocol, and no interpreter to start.

What only a process shows (signals, the parent's death) is in `test_killed_tiering.py`.
"""

import asyncio
import socket
from contextlib import suppress

from provider.clock import SystemClock
from tieredstore.store.child.owner import TieringOwner


class TaskAsProcess:
    """What `process.py` asks of a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.task: asyncio.Task[None] | None = None
        self._killed = False

    def kill(self) -> None:
        if self.task is None or self.task.done():
            raise ProcessLookupError
        self._killed = True
        self.task.cancel()

    async def wait(self) -> int:
        assert self.task is not None
        await asyncio.wait([self.task])
        return -9 if self._killed else 0


class TieringInLoop:
    """Starts owners as tasks. `fails`: errors of the next starts."""

    def __init__(self) -> None:
        self.started: list[TaskAsProcess] = []
        self.fails: list[Exception] = []

    async def start(
        self,
    ) -> tuple[TaskAsProcess, asyncio.StreamReader, asyncio.StreamWriter]:
        if self.fails:
            raise self.fails.pop(0)
        ours, theirs = socket.socketpair()
        one = TaskAsProcess(len(self.started) + 1)
        one.task = asyncio.get_running_loop().create_task(self._run(theirs, one))
        self.started.append(one)
        return one, *await asyncio.open_unix_connection(sock=ours)

    async def _run(self, theirs: socket.socket, one: TaskAsProcess) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=theirs)

        def orphaned() -> None:
            with suppress(ProcessLookupError):
                one.kill()

        owner = TieringOwner(
            SystemClock(),
            on_opening=lambda _peer, _opening: None,
            on_open=lambda: None,
            on_orphaned=orphaned,
        )
        try:
            await owner.run(reader, writer)
        finally:
            writer.close()
