"""A `PosixStore` without threads: each call is done when it returns, so a seed replays a run.

For a simulated loop. What several syncs at a time may do to a file system, `power_failure` does.
"""

from pathlib import Path

from provider.clock import Clock
from provider.options import PosixOptions
from provider.posix.store import PosixStore
from tests.support.memory_tier import InlineExecutor


class InlineStore(PosixStore):
    """The real store on a real directory; one object is one process's."""

    def __init__(
        self, root: Path, *, options: PosixOptions | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(root, options=options, clock=clock)
        self._made_of = (root, options, clock)
        inline = InlineExecutor()
        self._readers = self._writers = inline  # type: ignore[assignment]
        self._appender = self._deleter = inline  # type: ignore[assignment]
        self._work._rounds._syncers = inline  # type: ignore[assignment]

    def another_client(self) -> "InlineStore":
        """Another process's store of the same directory."""
        root, options, clock = self._made_of
        return InlineStore(root, options=options, clock=clock)

    async def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        """End as a process does, at once: descriptors and locks are gone."""
        if not self._is_closed:
            self._is_closed = True
            self._close_waiting()
