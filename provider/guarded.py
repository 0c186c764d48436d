"""A store that nobody uses before somebody has looked whether it is the right one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from provider.errors import StoreError
from provider.forwarding import ForwardingStore, Result
from provider.object_store import ObjectStore

Look = Callable[[ObjectStore], Awaitable[bool]]
"""Looks at a store, and raises what the calls of one who uses it shall raise.

It says whether that was the last look: False if there was nothing to be seen yet.
"""


class GuardedStore(ForwardingStore):
    """Wrap a store; a call is passed on once a look has ended well.

    A store that did not answer when it was opened may be another one than was meant, too: what it
    lacks would seem lost, and what it is told to delete would stay where it really lies.
    """

    def __init__(self, inner: ObjectStore, look: Look, *, prefix: str) -> None:
        """`prefix`: of the names that are used here.

        What fails at another name, such as a look for keys, is told of the name that was asked for:
        by that it is known which store failed.
        """
        super().__init__(inner)
        self._prefix = prefix
        self._look: Look | None = look
        self._one_looks = asyncio.Lock()
        self._looks = 0
        self._failed: tuple[int, StoreError] | None = None
        """Which look failed last, and how."""

    def __repr__(self) -> str:
        return f"<GuardedStore {'seen' if self._look is None else 'not seen yet'}: {self.inner!r}>"

    async def look(self) -> None:
        """Look, unless somebody has seen all that there is to be seen.

        One look at a time: who waits for one that fails, failed with it, so that many calls wait no
        longer than one.

        Raises: what the look raises; the next call looks again.
        """
        begun = self._looks
        async with self._one_looks:
            if self._look is None:
                return
            if self._failed is not None and self._failed[0] > begun:
                error = self._failed[1]  # that look began after this call did
                raise type(error)(*error.args)  # each caller's own: its path may be changed
            self._looks += 1
            try:
                if await self._look(self.inner):
                    self._look = None
            except StoreError as error:
                self._failed = self._looks, error
                raise

    async def _call(
        self,
        verb: str,
        names: Sequence[str],
        effect: Callable[[], Awaitable[Result]],
        size_bytes: int = 0,
    ) -> Result:
        """Look, then call."""
        try:
            if self._look is not None:
                await self.look()
            return await super()._call(verb, names, effect, size_bytes)
        except StoreError as error:
            if names and not error.path.startswith(self._prefix):
                error.path = names[0]
            raise
