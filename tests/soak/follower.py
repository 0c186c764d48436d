"""`tier --follow` as a process: started, stopped, killed and replaced."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.soak.resources import Usage, usage_of
from tests.support.cli import COMMAND
from tests.support.patience import Patience, until

SIDE_BY_SIDE_ENTRIES_MAX = 2000
"""Journal entries that two owners may write until one of them ends; some ten come in a second."""


class Follower:
    """At most one process that should live, and for a moment the one that it replaces."""

    def __init__(self, arguments: list[str], log: Path, entries: Callable[[], int]) -> None:
        """`entries` tells how far the tier's journal is."""
        self._command = [*COMMAND, *arguments]
        self._log = log
        self._entries = entries
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.kills = 0
        self.stops = 0
        self.fenced = 0

    def __repr__(self) -> str:
        return (
            f"<Follower: {self.starts} starts, {self.kills} killed, {self.stops} stopped, "
            f"{self.fenced} fenced>"
        )

    def start(self) -> None:
        """Start one; none is running."""
        assert self._process is None
        self._process = self._started()

    def usage(self) -> Usage | None:
        """What the process has now."""
        return usage_of(self._process.pid) if self._process else None

    def check_alive(self) -> None:
        """Fail if it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            status = self._process.returncode
            raise AssertionError(f"the follower ended with {status}: {self.last_words()}")

    async def kill(self) -> None:
        """SIGKILL it."""
        await self._end(signal.SIGKILL, {-signal.SIGKILL})
        self.kills += 1

    async def stop(self) -> None:
        """SIGTERM it: it commits what is there, and ends with 0, unless it is still importing."""
        await self._end(signal.SIGTERM, {0, -signal.SIGTERM})
        self.stops += 1

    async def replace(self) -> None:
        """Start a second owner; one of the two must find out and end by itself, with 4.

        It is the first one, unless that had not yet taken the tier when the second one did.
        """
        self.check_alive()
        assert self._process is not None
        pair = [self._process, self._started("--take-over")]
        begin = self._entries()

        def one_has_ended() -> bool:
            written = self._entries() - begin
            assert written < SIDE_BY_SIDE_ENTRIES_MAX, f"two owners go on: {self.last_words()}"
            return any(process.poll() is not None for process in pair)

        try:
            await until(one_has_ended, self.patience("neither of two owners ends", *pair))
        finally:
            self._process = next((one for one in pair if one.poll() is None), None)
            for process in pair:
                if process is not self._process and process.poll() is None:
                    process.kill()
                    process.wait()
        ended = [process.returncode for process in pair if process is not self._process]
        assert ended == [4], f"of two owners ended {ended}: {self.last_words()}"
        self.fenced += 1

    def patience(self, otherwise: str, *others: "subprocess.Popen[bytes]") -> Patience:
        """For waits on what the process does, or on what `others` do."""
        processes = others or ([self._process] if self._process else [])
        return Patience(
            lambda: f"{otherwise}: {self.last_words()}",
            marks=self._bytes_printed,
            pids=[process.pid for process in processes],
        )

    def last_words(self) -> str:
        """The end of what the processes printed."""
        return self._log.read_text(errors="replace")[-4000:]

    def _bytes_printed(self) -> int:
        return self._log.stat().st_size

    def close(self) -> None:
        """Kill what is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _started(self, *more: str) -> subprocess.Popen[bytes]:
        self.starts += 1
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*self._command, *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    async def _end(self, number: signal.Signals, statuses: set[int]) -> None:
        self.check_alive()
        process = self._process
        assert process is not None
        process.send_signal(number)
        patience = self.patience(f"{number.name} did not end it", process)
        await until(lambda: process.poll() is not None, patience)
        assert process.returncode in statuses, (
            f"{number.name} ended it with {process.returncode}: {self.last_words()}"
        )
        self._process = None
