"""Retention and settings of each topic in the tier, from its broker's `config/topics.json`."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from container.metadata.records import Topic
from container.tier import Tier
from provider.clock import Clock
from provider.errors import Unavailable
from tieredstore.following.directory.layout import TOPICS, read_topic_table
from tieredstore.hot.log.topics import (
    RESERVE_TIME,
    ConfirmedTime,
    confirmed_times,
    kept_settings,
)

LOGGER = logging.getLogger("tieredstore.store")
LOOK_S = 60.0
"""Seconds between two polls of the file."""


def hours_of(table: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return the hours by topic; -1 for a topic without a whole number above 0. Pure."""
    found: dict[str, int] = {}
    for topic, settings in table.items():
        attributes: object = settings.get("attributes")
        is_map = isinstance(attributes, Mapping)
        text = str(cast("Mapping[str, object]", attributes).get(RESERVE_TIME) if is_map else None)
        is_number = text.isascii() and text.isdecimal() and len(text) < 10  # noqa: PLR2004 - 1e9 h
        found[topic] = int(text) if is_number and int(text) > 0 else -1
    return found


class TopicValues(NamedTuple):
    """Values of topics for the tier, by topic."""

    hours: Mapping[str, int]
    settings: Mapping[str, str]
    """As `kept_settings`."""


def values_of(table: Mapping[str, Mapping[str, Any]]) -> TopicValues:
    """Return the values of the topics in a table. Pure."""
    settings = {topic: kept_settings(row) for topic, row in table.items()}
    return TopicValues(hours_of(table), {topic: text for topic, text in settings.items() if text})


async def topic_values(root: Path) -> TopicValues:
    """Return the values of the topics of the store `root`; none if they cannot be read."""
    return await asyncio.to_thread(lambda: values_of(read_topic_table(root)))


class OwnTopicValues:
    """Retention of the topics of a store of our own.

    `config/topics.json` has no checksum. A time that is shorter than the tier's is not applied
    unless `set-retention` or a program set it: a wrong digit would delete messages for good.
    """

    def __init__(self, root: Path, tier: Tier) -> None:
        self._root = root
        self._tier = tier
        self._logged: dict[str, int] = {}
        """Times that were not applied, and were logged."""

    def __repr__(self) -> str:
        return f"<OwnTopicValues of {self._root}>"

    async def read(self) -> TopicValues:
        """Return the values to apply; none if the file cannot be read. Logs what is not applied."""
        document = await asyncio.to_thread(_own_document, self._root)
        confirmed, topics = confirmed_times(document), self._tier.state.topics
        default = self._tier.upkeep.options.retention_hours
        read = values_of(document.get("topicConfigTable", {}))
        found = dict(read.hours)
        for topic, hours in read.hours.items():
            kept = kept_hours(hours, confirmed.get(topic), topics.get(topic), default)
            if kept != hours and self._logged.get(topic) != hours:
                self._logged[topic] = hours
                LOGGER.warning(
                    "%s has %s for the topic %s, which is shorter than the %d hours before, and"
                    " was set by no command: messages are kept for %d hours until `tieredstore"
                    " set-retention` sets it",
                    self._root / TOPICS,
                    f"{RESERVE_TIME} {hours}" if hours > 0 else f"no {RESERVE_TIME}",
                    topic,
                    kept,
                    kept,
                )
            found[topic] = kept
        return TopicValues(found, read.settings)


def kept_hours(
    hours: int, confirmed: ConfirmedTime | None, tiered: Topic | None, default: int
) -> int:
    """Return the retention to apply where the file has `hours`: no shorter unconfirmed one. Pure.

    Args:
        hours: of the file; -1: the default.
        confirmed: set by a command or a program last; None: never.
        tiered: the tier's record of the topic; None: it has none.
        default: hours of a topic without its own.
    """
    known = [] if tiered is None or tiered.retention_hours <= 0 else [tiered.retention_hours]
    if confirmed is not None and not (known and tiered and confirmed.at_ms < tiered.updated_ms):
        if confirmed.hours == hours:
            return hours
        known += [confirmed.hours] if confirmed.hours > 0 else []
    longest = max(known, default=0)
    return longest if (hours if hours > 0 else default) < longest else hours


def _own_document(root: Path) -> dict[str, Any]:
    """Read `config/topics.json` alone, for its `.bak` is older; empty if it cannot be read."""
    try:
        document: object = json.loads((root / TOPICS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    found = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    table: object = found.get("topicConfigTable")
    is_table = isinstance(table, dict) and all(
        isinstance(one, dict) for one in cast("dict[str, Any]", table).values()
    )
    return found if is_table else {}


async def keep_topic_values(
    read: Callable[[], Awaitable[TopicValues]], tier: Tier, clock: Clock
) -> None:
    """Publish the values that `read` returns, now and after each change, until cancelled.

    Raises:
        Fenced: a newer owner has the tier.
    """
    while True:
        values = await read()
        with suppress(Unavailable):  # the next round retries
            await tier.set_topics(*values)
        await clock.sleep(LOOK_S)
