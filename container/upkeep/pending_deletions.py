"""Files that this owner is about to delete, so that no commit begins one of the same name."""

import asyncio
from collections.abc import Collection, Generator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from provider.errors import Denied, Unavailable


class PendingDeletions:
    """Names whose deletion was asked for and is not answered. Holds those names.

    Only a tail cut lets a name come again: what was rightly to be deleted before it must be gone
    before a segment of that name begins.
    """

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._unclear: set[str] = set()
        self._answered = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PendingDeletions: {len(self._asked)} asked for, {len(self._unclear)} unclear>"

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
