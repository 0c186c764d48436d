"""Files that this owner is about to delete, or to begin, so that it never does both to one name."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager

from provider.errors import Denied, Unavailable


class PendingDeletions:
    """Names whose deletion was asked for and is not answered, and those that commits begin.

    A name comes again after a tail cut, and where an owner died before it had published the file:
    what was rightly to be deleted before must be gone before a segment of that name begins, and
    what a commit begins is not deleted.
    """

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._unclear: set[str] = set()
        self._begun: set[str] = set()
        self._answered = asyncio.Event()

    def __repr__(self) -> str:
        return (
            f"<PendingDeletions: {len(self._asked)} asked for, {len(self._unclear)} unclear,"
            f" {len(self._begun)} begun>"
        )

    @contextmanager
    def asked(self, names: Sequence[str]) -> Generator[None]:
        """Hold names while the deletion of them is on its way.

        One that fails or is cancelled may still land (P7): until it is repeated, they stay held.
        """
        self._asked.update(names)
        self._unclear.update(names)
        try:
            yield
        except Denied:  # nothing happened
            self._unclear.difference_update(names)
            raise
        else:
            self._unclear.difference_update(names)
        finally:
            self._asked.difference_update(names)
            self._answered.set()

    @asynccontextmanager
    async def begun(self, names: Collection[str]) -> AsyncGenerator[None]:
        """Begin files of these names within the block: nothing deletes them there.

        Waits for deletions of them that are on their way; raises as `wait_for`.
        """
        await self.wait_for(names)
        self._begun.update(names)
        try:
            yield
        finally:
            self._begun.difference_update(names)

    @property
    def being_begun(self) -> AbstractSet[str]:
        """Names that commits are about to begin: not to be deleted."""
        return self._begun

    @property
    def unclear(self) -> AbstractSet[str]:
        """Names whose deletion failed and may still land: to be repeated, whatever comes again."""
        return self._unclear

    async def wait_for(self, names: Collection[str]) -> None:
        """Return once no deletion of one of the names can land any more.

        Raises:
            Unavailable: a deletion failed, and may still land.
        """
        while not self._asked.isdisjoint(names):
            self._answered.clear()
            await self._answered.wait()
        unclear = self._unclear.intersection(names)
        if unclear:
            raise Unavailable("its deletion failed and may still land; try again", min(unclear))
