"""Reading once more with newer metadata, where the tier contradicts those that we have."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from container.names.queue_id import QueueId
from fetcher.source import Tier
from provider.errors import Corrupt, OutOfRange

ResultT = TypeVar("ResultT")


async def from_newest_tier(
    tier: Tier, queue: QueueId, read: Callable[[], Awaitable[ResultT]]
) -> ResultT:
    """What `read` gives, once more with newer metadata if the tier contradicts ours."""
    generation = _generation(tier, queue)
    try:
        return await read()
    except OutOfRange:
        # Retention or a new owner moved what the metadata names.
        await tier.refresh()
    except Corrupt:
        # A cut may have freed a file, which holds other messages by now.
        if not await tier.refresh() and _generation(tier, queue) == generation:
            raise
    return await read()


def _generation(tier: Tier, queue: QueueId) -> int | None:
    source = tier.container(queue)
    return None if source is None else source.generation
