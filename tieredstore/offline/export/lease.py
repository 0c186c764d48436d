"""Lease of an export at a URL or into a table, where no lock of a host is seen by other hosts.

Each message is in an export once even without it: two writers of one plan write the same files,
and a plan is created under a free name. The lease refuses the second writer before it works.
"""

import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, Self

import orjson

from container.errors import InUse
from provider.errors import AlreadyExists, StoreError

BEAT_S = 10.0
"""Seconds between two writes of the lease by its holder."""
BEATS_MISSED_MAX = 4
"""Beats without a write after which the holder counts as dead."""


class LeaseFiles(Protocol):
    """Small files, as those of an `ExportDirectory`. All calls raise `Denied` and `Unavailable`."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file, replacing one of that name."""
        ...

    def create(self, name: str, content: bytes) -> None:
        """Write a file; raise `AlreadyExists` if the name is taken."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file. Idempotent."""
        ...


class ExportLease:
    """The right to write an export, as a context manager. A thread renews it.

    A holder that was killed is waited for, `BEATS_MISSED_MAX` beats long.
    """

    def __init__(
        self,
        files: LeaseFiles,
        name: str,
        place: str,
        *,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """Take nothing yet.

        Args:
            files: those of the export.
            name: of the file that is the lease.
            place: of the export, for errors.
            wait: waits for some seconds; returns true if the lease is given back meanwhile.
        """
        self._files = files
        self._name = name
        self._place = place
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        self._writer = secrets.token_hex(8)
        self._beats = 0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Take the lease.

        Raises:
            InUse: another process has it, whose host and number are named.
            Denied, Unavailable: the storage refuses or does not answer.
        """
        try:
            self._files.create(self._name, self._content())
        except AlreadyExists:
            self._take_over()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back. A storage that fails meanwhile keeps it until it counts as dead."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(StoreError):
            if self._is_mine():
                self._files.remove(self._name)

    def _take_over(self) -> None:
        before = self._files.read(self._name)
        for _ in range(BEATS_MISSED_MAX):
            if before is None:
                break
            self._wait(BEAT_S)
            now = self._files.read(self._name)
            if now is not None and now != before:
                raise self._in_use(now)
            before = now
        self._files.write(self._name, self._content())
        self._wait(1.0)  # of two that take it over, the last writer has it
        if not self._is_mine():
            raise self._in_use(self._files.read(self._name))

    def _renew(self) -> None:
        """Write the lease until it is given back, or another process has it."""
        while not self._wait(BEAT_S):
            with suppress(StoreError):  # the next beat tries again
                if not self._is_mine():
                    return
                self._beats += 1
                self._files.write(self._name, self._content())

    def _content(self) -> bytes:
        return orjson.dumps(
            {
                "writer": self._writer,
                "host": socket.gethostname(),
                "process": os.getpid(),
                "beats": self._beats,
            }
        )

    def _is_mine(self) -> bool:
        return _parsed(self._files.read(self._name)).get("writer") == self._writer

    def _in_use(self, content: bytes | None) -> InUse:
        holder = _parsed(content)
        who = f"process {holder['process']} on {holder['host']}" if holder else "another process"
        return InUse(f"{who} writes this export: wait until it has ended", self._place)


def _parsed(content: bytes | None) -> dict[str, Any]:
    try:
        return orjson.loads(content or b"{}")
    except orjson.JSONDecodeError:
        return {}
