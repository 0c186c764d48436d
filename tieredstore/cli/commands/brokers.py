"""`tieredstore brokers`: whose messages a tier holds."""

import asyncio
import logging
from dataclasses import dataclass

from provider.errors import NotFound, StoreError
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import Row, write_json, write_table
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config
from tieredstore.metrics.summary import QueueSummary
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.places import brokers_in, directory_of
from tieredstore.session.reader import no_tier
from tieredstore.texts import count_text, size_text, time_text

LOGGER = logging.getLogger("tieredstore.cli.brokers")


@dataclass(frozen=True, slots=True)
class _Found:
    """A broker of the tier."""

    config: Config
    queues: tuple[QueueSummary, ...] = ()
    trouble: str = ""
    """Why its queues cannot be listed."""

    @property
    def newest_ms(self) -> int | None:
        """The largest store timestamp, Unix ms."""
        return max((queue.last_timestamp or 0 for queue in self.queues), default=None)


def run(invocation: Invocation, *, as_json: bool) -> int:
    """List the brokers of a tier: cluster, queues, messages, size, newest message."""
    config = invocation.load_config()
    names = brokers_in(config)
    if not names:
        raise NotFound(no_tier(config.tier_root), str(config.tier_root))
    found = [asyncio.run(_look_into(config.of_broker(*name))) for name in names]
    if as_json:
        write_json(map(_row, found))
    else:
        columns = ("cluster", "broker", "queues", "messages", "size", "newest message (UTC)")
        numbers = frozenset({"queues", "messages", "size"})
        write_table(columns, map(_cells, found), numbers=numbers)
    for one in found:
        if one.trouble:
            LOGGER.error("%s of cluster %s: %s", one.config.broker, one.config.cluster, one.trouble)
    return FINDINGS if any(one.trouble for one in found) else 0


async def _look_into(config: Config) -> _Found:
    try:
        async with ReadableTier(lambda: config, damaged=True) as tier:
            trouble = "" if tier.damage is None else f"the journal is damaged: {tier.damage}"
            return _Found(config, tuple(tier.queues()), trouble)
    except StoreError as error:
        return _Found(config, trouble=str(error))


def _row(found: _Found) -> Row:
    return {
        "cluster": found.config.cluster,
        "broker": found.config.broker,
        "directory": str(directory_of(found.config)),
        "queues": len(found.queues),
        "messages": sum(queue.messages for queue in found.queues),
        "commit_log_bytes": sum(queue.commit_log_bytes for queue in found.queues),
        "last_timestamp": found.newest_ms,
        "trouble": found.trouble or None,
    }


def _cells(found: _Found) -> list[str]:
    return [
        found.config.cluster,
        found.config.broker,
        count_text(len(found.queues)),
        count_text(sum(queue.messages for queue in found.queues)),
        size_text(sum(queue.commit_log_bytes for queue in found.queues)),
        time_text(found.newest_ms),
    ]
