"""A hot log that ends below its tier: its queues continue at the tier's end.

Such a log is an older copy, or lost its disk or its CommitLog. The tier has the messages that it
lacks, so that nothing is lost, and no offset is given twice. A log that has other messages than its
tier at the same offsets is refused.
"""

import asyncio
import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import cast

from container.errors import BytesMissing
from container.metadata.records import Queue
from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from container.tier_view import TierView
from dispatcher.consistency import compare_all, find_common_end, first_record
from dispatcher.options import COMPARED_BYTES_MAX
from dispatcher.ports import HotQueue, Wanted, records_of_queue
from provider.clock import Clock
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.hot import HotLog, HotLogFeed, open_feed
from tieredstore.known_tier import memory_of_store
from tieredstore.naming import refuse_other_store, remember_store
from tieredstore.opening import open_reader
from tieredstore.process_name import moment_text

LOGGER = logging.getLogger("tieredstore.store")
ANSWER_S_MAX = 60.0
"""Longest wait for the metadata of a tier that is only read, in seconds."""
COMPARED_QUEUES_MAX = 1_000
"""Queues that a writer which does not own the tier compares all of: some 0.2 ms each."""
NAMED_MAX = 4
"""Queues that a warning names."""


class Contradiction(Denied):
    """Repair the tier, or replace the hot log: the two have different messages at one offset."""


async def continue_at_tier(
    log: HotLog,
    feed: HotLogFeed,
    tier: TierView,
    *,
    compared_messages: int,
    compared_queues: int | None = None,
) -> Mapping[QueueId, Queue]:
    """Compare a hot log with its tier, and continue queues that end below the tier at its end.

    Returns the queues that agree with what the tier has published of them. Costs `compare_all`.
    Cancelling it may leave queues continued, which is durable. Of a log with more queues than
    `compared_queues` only those are compared that end below the tier; None: all.

    Raises:
        Contradiction: they have different messages at one offset; nothing was changed.
        Unavailable, Denied: one of the two cannot be read or written now.
    """
    compared = {queue: log.next_offset(queue) for queue in log.queues()}
    await log.flush()  # the feed has durable messages only
    feed.look_at_all()
    surveyed = await feed.survey()
    if compared_queues is not None and len(surveyed) > compared_queues:
        surveyed = [hot for hot in surveyed if _is_below(tier.queue(hot.id), hot)]
    agreeing, differing = await compare_all(feed, tier, surveyed, newest=compared_messages)
    if differing:
        raise Contradiction(await _contradiction(feed, tier, differing), str(log.root))
    ends = {one.id: int(one.next_offset) for one in tier.state.queues.bounds()}
    behind = {queue: end for queue, end in ends.items() if log.next_offset(queue) < end}
    if not behind:
        return agreeing
    had = {queue: log.next_offset(queue) for queue in behind}
    async with feed.without({queue.topic for queue in behind}):
        continued = await log.continue_queues(behind, compared)
    if len(continued) < len(behind):
        raise Unavailable("messages were put while hot log and tier were compared", str(log.root))
    LOGGER.warning("%s", _continued_sentence(log, had, behind))
    return {queue: one for queue, one in agreeing.items() if queue not in behind}


async def continue_unowned(config: Config, clock: Clock, log: HotLog) -> None:
    """`continue_at_tier` for a writer that does not own the configured tier.

    If the tier does not answer, or the place is empty or another tier's, a log with messages
    continues at its own ends, with a warning. The store remembers its broker.

    Raises:
        ConfigError: the store is another broker's.
        Contradiction: as `continue_at_tier`.
        Unavailable: the tier does not answer, and the log is empty.
    """
    await asyncio.to_thread(refuse_other_store, config, log.root)
    await _ask_tier(config, clock, log)
    await asyncio.to_thread(remember_store, config, log.root)


async def _ask_tier(config: Config, clock: Clock, log: HotLog) -> None:
    memory = await asyncio.to_thread(memory_of_store, config, log.root)
    opening = open_feed(log, clock=clock, cluster=config.cluster, broker=config.broker)
    try:
        await asyncio.to_thread(memory.refuse_empty)
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(ANSWER_S_MAX):
                tier = await stack.enter_async_context(open_reader(config))
                await memory.refuse_other(tier.store, tier.state.broker)
            feed = await stack.enter_async_context(opening)
            newest = config.dispatch.compared_messages_max
            await continue_at_tier(
                log, feed, tier, compared_messages=newest, compared_queues=COMPARED_QUEUES_MAX
            )
    except Contradiction:
        raise
    except (StoreError, ConfigError, TimeoutError) as error:
        if isinstance(error, NotFound) and not isinstance(error, BytesMissing):
            return  # nothing was tiered yet
        why = str(error) or f"no answer within {ANSWER_S_MAX:g} s"
        if log.is_new:
            raise Unavailable(
                f"the hot log is empty and its tier does not answer, so that the next offsets are "
                f"not known ({why}): try again when the tier answers",
                str(log.root),
            ) from error
        LOGGER.warning("the tier does not answer, offsets continue from the hot log alone: %s", why)


def _is_below(tiered: Queue | None, hot: HotQueue) -> bool:
    return tiered is not None and hot.max_offset < tiered.next_offset


def _continued_sentence(
    log: HotLog, had: Mapping[QueueId, int], behind: Mapping[QueueId, int]
) -> str:
    named = [
        f"{queue} ended at offset {had[queue]} and continues at {behind[queue]}"
        for queue in sorted(behind)[:NAMED_MAX]
    ]
    more = len(behind) - len(named)
    rest = f", and {more} more queues" if more else ""
    return (
        f"the hot log {log.root} ends below its tier, as an older copy or after a lost disk does: "
        f"{'; '.join(named)}{rest}; the tier has the messages in between, nothing is lost"
    )


async def _contradiction(
    feed: HotLogFeed, tier: TierView, differing: Mapping[QueueId, QueueOffset]
) -> str:
    """One sentence: queue, offset, both messages, and the command that cures it."""
    queue = min(differing)
    offset = differing[queue]
    with suppress(Corrupt, OutOfRange):  # then the offset that was found is named
        offset = await find_common_end(feed, tier, queue) or offset
    hot, tiered = await _both(feed, tier, queue, offset)
    more = f", and {len(differing) - 1} more queues differ" if len(differing) > 1 else ""
    one = f" {shlex.quote(queue.topic)} {queue.queue_id}" if len(differing) == 1 else ""
    return (
        f"the hot log contradicts its tier: at offset {offset} of {queue} the hot log has {hot} and"
        f" the tier {tiered}{more}: `tieredstore repair{one} --cut-to-hot` keeps the hot log's and"
        f" unpublishes the tier's from there on; to keep the tier's, move the hot log away"
    )


async def _both(
    feed: HotLogFeed, tier: TierView, queue: QueueId, offset: QueueOffset
) -> Sequence[str]:
    """The messages of hot log and tier at one offset, in words."""
    words: list[str] = []
    for read in (_hot_record, _tiered_record):
        try:
            words.append(_message_words(await read(feed, tier, queue, offset)))
        except StoreError as error:
            words.append(f"one that cannot be read ({error.reason})")
    return words


async def _hot_record(
    feed: HotLogFeed, _tier: TierView, queue: QueueId, offset: QueueOffset
) -> bytes:
    units = await feed.references(queue, offset, messages_max=1)
    return first_record(await records_of_queue(feed, Wanted(queue, offset, units[:1])))


async def _tiered_record(
    _feed: HotLogFeed, tier: TierView, queue: QueueId, offset: QueueOffset
) -> bytes:
    found = await tier.messages_at(queue, [offset], bytes_max=COMPARED_BYTES_MAX, history=True)
    return cast("bytes", found[0])


def _message_words(record: bytes) -> str:
    message = StoredMessage.decode(record, path="", position=0)
    keys = message.property_map.get("KEYS", "")
    keyed = f", keys {keys!r}" if keys else ""
    stored = moment_text(message.store_timestamp)
    return f"a message of {len(message.body)} bytes stored at {stored}{keyed}"
