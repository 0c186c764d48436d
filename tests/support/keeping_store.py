"""A disk cache of callers that believe everything."""

from collections.abc import Sequence

from provider.disk_cache.store import DiskCachedStore
from provider.disk_cache.use import cache_use, current_use
from provider.object_store import Buffer
from provider.ranges import ByteRange


class KeepingStore(DiskCachedStore):
    """Keeps each response at once, as for a reader that has verified it."""

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        if current_use() is not None:
            return await super().read_many(wanted)
        with cache_use() as use:
            found = await super().read_many(wanted)
            await use.keep()
            return found
