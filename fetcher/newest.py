"""Reading once more, with newer metadata and past caches, where the tier contradicts ours."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from container.names.queue_id import QueueId
from fetcher.source import Tier
from provider.disk_cache.use import cache_use
from provider.errors import Corrupt, OutOfRange

ResultT = TypeVar("ResultT")


async def from_newest_tier(
    tier: Tier, queue: QueueId, read: Callable[[], Awaitable[ResultT]]
) -> ResultT:
    """What `read` gives, once more with newer metadata if the tier contradicts ours."""
    generation = _generation(tier, queue)
    with cache_use() as use:
        try:
            return await read()
        except OutOfRange:
            # Retention or a new owner moved what the metadata names.
            await tier.refresh()
        except Corrupt:
            # A cut may have freed a file, which holds other messages by now, or a damaged answer
            # of the storage lies in a cache.
            is_newer = await tier.refresh() or _generation(tier, queue) != generation
            if not is_newer and not use.was_used:
                raise
            use.is_past = use.is_past or use.was_used
        return await read()


def _generation(tier: Tier, queue: QueueId) -> int | None:
    source = tier.container(queue)
    return None if source is None else source.generation
